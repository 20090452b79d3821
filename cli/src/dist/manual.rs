//! The manual page and the shells' completions, made of the definition of the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Error;
use crate::args::Cli;

/// One page: the program's, followed by each command's.
pub(crate) fn page() -> Result<Vec<u8>, Error> {
    let mut page = Vec::new();
    let root = Cli::command();
    clap_mangen::Man::new(root.clone()).render(&mut page)?;
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        let title = format!(".SH LIMEN {}\n", command.get_name().to_uppercase());
        page.extend_from_slice(title.as_bytes());
        let man = clap_mangen::Man::new(command.clone());
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        man.render_extra_section(&mut page)?;
    }
    Ok(page)
}

/// A shell's script.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "limen", &mut script);
    script
}
