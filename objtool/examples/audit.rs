//! Prints the audit of the image named on the command line.
fn main() {
    for path in std::env::args_os().skip(1) {
        match objtool::audit_file(path.as_ref()) {
            Ok(report) => print!("{report}"),
            Err(error) => println!("{error}"),
        }
    }
}
