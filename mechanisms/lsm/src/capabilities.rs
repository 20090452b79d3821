//! What capability sets become (capabilities(7)): at exec, when user ids change, by capset(2).
//!
//! Why it is hard: five sets, three of files, two ids and eight secure bits meet at exec, and each
//! combination is somebody's protection. So it is one function of values, tested as a table.
//!
//! Neighbours: the kernel's policy `capability`, which answers hooks with these.

/// A set of capabilities: bit n is the one with number n.
pub type Set = u64;

/// Secure bits (capabilities(7)): each has a lock bit above it.
pub mod securebits {
    /// The superuser's id gives no capabilities at exec.
    pub const NOROOT: u32 = 1;
    /// Changes of ids change no capabilities.
    pub const NO_SETUID_FIXUP: u32 = 1 << 2;
    /// Giving up id 0 keeps the permitted set.
    pub const KEEP_CAPS: u32 = 1 << 4;
    /// The ambient set cannot grow.
    pub const NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;
    /// The bits that can be set.
    pub const ALL: u32 = 0xff;
    /// The lock bits.
    pub const LOCKS: u32 = 0xaa;

    /// Whether bits may change so: locked ones stay, and so do the locks.
    #[must_use]
    pub const fn may_become(old: u32, new: u64) -> bool {
        let locked = old & LOCKS;
        let frozen = (locked | locked >> 1) as u64;
        new & !(ALL as u64) == 0 && (old as u64 ^ new) & frozen == 0
    }
}

/// A thread's sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "capabilities(7) describes each")]
pub struct Sets {
    pub permitted: Set,
    pub effective: Set,
    pub inheritable: Set,
    pub bounding: Set,
    pub ambient: Set,
    pub securebits: u32,
}

/// Ids of a thread that count here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "credentials(7) describes each")]
pub struct Ids {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
}

/// What a file gives who executes it (`security.capability`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSets {
    /// Given.
    pub permitted: Set,
    /// Given to who has them in the inheritable set.
    pub inheritable: Set,
    /// Whether they are effective at once.
    pub effective: bool,
}

/// A value that is no file's capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Words of the value: a magic number with flags, then 32-bit halves of permitted and inheritable.
const EFFECTIVE: u32 = 1;
const REVISION_MASK: u32 = 0xff00_0000;
/// Revisions and the lengths of their values, bytes.
const REVISION_1: (u32, usize) = (0x0100_0000, 12);
const REVISION_2: (u32, usize) = (0x0200_0000, 20);
/// With the user id that is the superuser of whom the file is meant for.
const REVISION_3: (u32, usize) = (0x0300_0000, 24);

impl FileSets {
    /// Reads an attribute's value. None: it is meant for another user namespace than this one, and
    /// gives nothing.
    ///
    /// # Errors
    /// If no kernel wrote this.
    pub fn decode(value: &[u8], all: Set) -> Result<Option<FileSets>, Malformed> {
        let word = |index: usize| -> Result<u32, Malformed> {
            let bytes = value.get(index * 4..index * 4 + 4).ok_or(Malformed)?;
            Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
        };
        let magic = word(0)?;
        let form = (magic & REVISION_MASK, value.len());
        if ![REVISION_1, REVISION_2, REVISION_3].contains(&form) {
            return Err(Malformed);
        }
        if form == REVISION_3 && word(5)? != 0 {
            return Ok(None);
        }
        let (mut permitted, mut inheritable) = (u64::from(word(1)?), u64::from(word(2)?));
        if form != REVISION_1 {
            permitted |= u64::from(word(3)?) << 32;
            inheritable |= u64::from(word(4)?) << 32;
        }
        Ok(Some(FileSets {
            permitted: permitted & all,
            inheritable: inheritable & all,
            effective: magic & EFFECTIVE != 0,
        }))
    }

    /// Whether setxattr(2) takes a value: the first revision is read, but not written any more. An
    /// empty one is taken, and then keeps the file from being run.
    #[must_use]
    pub fn may_be_set(value: &[u8]) -> bool {
        if value.is_empty() {
            return true;
        }
        let Some(magic) = value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
            return false;
        };
        [REVISION_2, REVISION_3].contains(&(magic & REVISION_MASK, value.len()))
    }
}

/// What stands against a program's gaining rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsafe {
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privs: bool,
    /// Somebody without CAP_SYS_PTRACE traces the caller, or others share its directories.
    pub traced: bool,
    /// The caller has CAP_SETUID: then its ids may change all the same.
    pub has_setuid: bool,
}

/// What comes of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterExec {
    /// The new sets.
    pub sets: Sets,
    /// The new effective ids: `None` if the program is not to have those that its file gives.
    pub keeps_ids: bool,
    /// Whether the program must not trust its environment (AT_SECURE).
    pub secure: bool,
    /// Whether it has rights that the caller did not have.
    pub gains: bool,
}

/// The file says that it needs more than it can have here: it is not run at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLittle;

/// The sets after execve(2): `old` runs a file with `file` sets, and `new` are the ids with what
/// set-user-ID and set-group-ID bits made of them.
///
/// # Errors
/// If the file needs what the bounding set keeps from it.
pub fn after_exec(
    old: (&Ids, &Sets),
    new: &Ids,
    file: Option<&FileSets>,
    dangers: Unsafe,
) -> Result<AfterExec, TooLittle> {
    let (old_ids, old) = old;
    let mut sets = *old;
    let mut effective = false;
    sets.permitted = 0;
    if let Some(file) = file {
        effective = file.effective;
        sets.permitted = old.bounding & file.permitted | old.inheritable & file.inheritable;
        if effective && file.permitted & !sets.permitted != 0 {
            return Err(TooLittle);
        }
    }
    let roots = old.securebits & securebits::NOROOT == 0;
    // A set-user-ID program of root's with sets of its own gets just those, unless root runs it.
    let own_sets_win = file.is_some() && new.uid != 0 && new.euid == 0;
    if roots && !own_sets_win {
        if new.uid == 0 || new.euid == 0 {
            sets.permitted = old.bounding | old.inheritable;
        }
        effective |= new.euid == 0;
    }
    let is_setid = new.euid != old_ids.uid || new.egid != old_ids.gid;
    let gains = sets.permitted & !old.permitted != 0;
    let mut keeps_ids = false;
    if (is_setid || gains) && (dangers.no_new_privs || dangers.traced) {
        keeps_ids = !dangers.has_setuid || dangers.no_new_privs;
        sets.permitted &= old.permitted;
    }
    if file.is_some() || is_setid {
        sets.ambient = 0;
    }
    sets.permitted |= sets.ambient;
    sets.effective = if effective { sets.permitted } else { sets.ambient };
    sets.securebits &= !securebits::KEEP_CAPS;
    let grew = sets.permitted & !sets.ambient != 0;
    let secure = is_setid || new.uid != 0 && (effective || grew);
    let gains = sets.permitted & !old.permitted != 0;
    Ok(AfterExec { sets, keeps_ids, secure, gains })
}

/// Which call changes user ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// setuid(2), setreuid(2), setresuid(2).
    Ids,
    /// setfsuid(2).
    FileSystem,
}

/// The sets after a change of user ids (capabilities(7), "Effect of user ID changes"). `of_files`
/// are those that go with the file system's id.
pub fn after_uid_change(old: &Ids, new: &Ids, change: Change, of_files: Set, sets: &mut Sets) {
    if sets.securebits & securebits::NO_SETUID_FIXUP != 0 {
        return;
    }
    if change == Change::FileSystem {
        if old.fsuid == 0 && new.fsuid != 0 {
            sets.effective &= !of_files;
        } else if old.fsuid != 0 && new.fsuid == 0 {
            sets.effective |= sets.permitted & of_files;
        }
        return;
    }
    let has_root = |ids: &Ids| [ids.uid, ids.euid, ids.suid].contains(&0);
    if has_root(old) && !has_root(new) {
        if sets.securebits & securebits::KEEP_CAPS == 0 {
            sets.permitted = 0;
            sets.effective = 0;
        }
        sets.ambient = 0;
    }
    if old.euid == 0 && new.euid != 0 {
        sets.effective = 0;
    } else if old.euid != 0 && new.euid == 0 {
        sets.effective = sets.permitted;
    }
}

/// Whether capset(2) may go from one to the other; `setpcap`: the caller has CAP_SETPCAP.
#[must_use]
pub fn may_set(old: &Sets, new: &Sets, setpcap: bool) -> bool {
    let within = |set: Set, limit: Set| set & !limit == 0;
    (setpcap || within(new.inheritable, old.inheritable | old.permitted))
        && within(new.inheritable, old.inheritable | old.bounding)
        && within(new.permitted, old.permitted)
        && within(new.effective, new.permitted)
}
