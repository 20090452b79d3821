//! What the server's threads may do: read below the shared folder, where the host has Landlock.
//!
//! Why it is hard: the guest is the enemy, and what decodes its messages runs in the process of
//! whoever started the VM. Landlock (landlock(7)) holds for a thread and those it starts, for good:
//! so a thread takes it upon itself before it starts the others, and the rest of the program keeps
//! what it may. On a host without it the server's own way of walking (`host.rs`) is what there is.
//!
//! What it does not restrict: looking at names and attributes (stat), which Landlock leaves free.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The newest of Landlock's versions whose rights are all named here; older hosts have fewer.
const NEWEST: ABI = ABI::V6;

/// Takes from this thread, and from those it starts, everything but reading below `root`: changes,
/// execution, connections, signals to others. Gives what became of it, for people.
pub(super) fn enter(root: BorrowedFd<'_>) -> String {
    match restrict(root) {
        Ok(RulesetStatus::FullyEnforced) => "by Landlock to reading below it".to_owned(),
        Ok(RulesetStatus::PartiallyEnforced) => {
            "by Landlock (an older one) to reading below it".to_owned()
        }
        Ok(RulesetStatus::NotEnforced) => "by itself alone: no Landlock here".to_owned(),
        Err(error) => format!("by itself alone: Landlock: {error}"),
    }
}

fn restrict(root: BorrowedFd<'_>) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rule(PathBeneath::new(root, read))?
        .restrict_self()?;
    Ok(status.ruleset)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    #[test]
    fn a_thread_reads_below_the_folder_and_nothing_else() {
        let inside = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        for dir in [&inside, &outside] {
            std::fs::write(dir.path().join("f"), "x").expect("written");
        }
        let root = std::fs::File::open(inside.path()).expect("opened");
        let (inner, outer) = (inside.path().join("f"), outside.path().join("f"));
        let of_thread = std::thread::spawn(move || {
            let how = super::enter(root.as_fd());
            let opens = |path| std::fs::File::open(path).is_ok();
            let writes = std::fs::write(&inner, "y").is_ok();
            (how, opens(&inner), opens(&outer), writes)
        });
        let (how, reads_inside, reads_outside, writes) = of_thread.join().expect("no panic");
        assert!(reads_inside, "{how}");
        let is_there = how.contains("by Landlock");
        assert_eq!((reads_outside, writes), (!is_there, !is_there), "{how}");
        assert!(std::fs::read(outside.path().join("f")).is_ok(), "other threads are free");
    }
}
