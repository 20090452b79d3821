//! Finishes a copy of the image named on the command line: `finish IN OUT`.
fn main() {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    let [from, to] = paths.as_slice() else { return };
    let data = std::fs::read(from).unwrap_or_default();
    match objtool::finish(&data, &objtool::FinishOptions::default()) {
        Ok(finished) => {
            print!("{}", finished.report);
            println!(
                "tables {:?}, branches {}, calls {}, poisoned {}",
                finished.tables, finished.branches, finished.calls, finished.poisoned
            );
            let _ = std::fs::write(to, finished.data);
        }
        Err(error) => println!("{error}"),
    }
}
