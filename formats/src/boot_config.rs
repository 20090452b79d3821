//! The boot configuration: which program to run, as whom, on which root, with which stdio.
//!
//! It travels as the file [`crate::ports::CONFIG_PATH`] of the initramfs. The encoding is a magic
//! followed by records of `tag: u16, length: u32, bytes` (little-endian). A record with an unknown
//! tag is an error, not skipped: command line and kernel are built together, so an unknown record
//! means that they were not.
//!
//! Why it is hard: strings are bytes (paths and environments need not be UTF-8), and the decoder
//! must hold for any input. Bounds: the whole is at most [`ENCODED_MAX`] bytes, and no field
//! allocates more than its record holds.
//!
//! Neighbours: `cli/src/run/plan/mod.rs` fills it in, the kernel's init reads it.

use alloc::vec::Vec;
use core::fmt;

/// Most bytes of an encoded configuration: Linux's limit for arguments and environment together
/// is a quarter of the stack limit, 2 MiB by default (execve(2)); the rest is small.
pub const ENCODED_MAX: usize = 4 << 20;

/// First bytes of every encoded configuration.
pub const MAGIC: &[u8; 8] = b"LIMENCF1";

/// A user id that means "as the first program", in what `limen exec` sends (the guest's own number
/// for no change, setresuid(2)).
pub const KEEP_ID: u32 = u32::MAX;

/// Where the guest's root file system comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootKind {
    /// The host's tree over virtio-9p, mount tag [`crate::ports::ROOT_TAG`], read-only, under a
    /// tmpfs overlay. Files of the initramfs (except `.limen/`) are copied over it.
    #[default]
    Live,
    /// The initramfs is the whole root; there is no 9p device for it.
    Packed,
}

/// What one of the program's descriptors 0, 1, 2 is on the host, and so what it must look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stdio {
    /// A byte stream: a pipe for `isatty`, `fstat` and `lseek` (ESPIPE).
    #[default]
    Pipe,
    /// The terminal. Every descriptor with this kind is the same tty: input and output of it go
    /// over the stdio port. If descriptor 0 is not a tty, nothing is ever typed at it, and the
    /// port's input belongs to descriptor 0.
    Tty,
    /// `/dev/null` on the host: the guest opens its own.
    Null,
}

/// Rows and columns of a terminal, as in `struct winsize` (ioctl_tty(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WinSize {
    /// Rows, in characters.
    pub rows: u16,
    /// Columns, in characters.
    pub cols: u16,
}

/// A host folder shared for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RwMount {
    /// virtio-9p mount tag, `rw0` and so on.
    pub tag: Vec<u8>,
    /// Absolute path in the guest.
    pub path: Vec<u8>,
}

/// What the guest counts and reports before it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// `missing-syscall` lines.
    pub missing_syscalls: bool,
    /// `syscall` lines.
    pub syscall_summary: bool,
    /// `missing-file` lines: paths that the program asked for and did not find.
    pub missing_files: bool,
    /// `counter` lines (peak memory, faults, context switches and so on).
    pub counters: bool,
    /// The host's clock: it answers `ask-time`.
    pub clock: bool,
    /// `trace` lines: what happened at the boundary, the latest of each CPU.
    pub trace: bool,
}

/// Everything the kernel needs to start the program. All strings are raw bytes without NUL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootConfig {
    /// Path of the program file in the guest. Absolute; already looked up in PATH.
    pub program: Vec<u8>,
    /// Arguments, `argv[0]` included.
    pub argv: Vec<Vec<u8>>,
    /// Environment, `KEY=VALUE` each.
    pub env: Vec<Vec<u8>>,
    /// Working directory. If it does not exist, no program starts.
    pub cwd: Vec<u8>,
    /// Real, effective and saved user id.
    pub uid: u32,
    /// Real, effective and saved group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// uname(2) node name; empty means the kernel's default.
    pub hostname: Vec<u8>,
    /// umask(2) of the program.
    pub umask: u32,
    /// Where `/` comes from.
    pub root: RootKind,
    /// Shared folders, mounted in this order.
    pub rw_mounts: Vec<RwMount>,
    /// Absolute guest paths that must look as if they did not exist (ENOENT).
    pub hidden: Vec<Vec<u8>>,
    /// What descriptors 0, 1 and 2 are.
    pub stdio: [Stdio; 3],
    /// First window size, if any of [`Self::stdio`] is a tty.
    pub winsize: WinSize,
    /// What to report.
    pub want: Want,
    /// CLOCK_REALTIME at start, in ns since the epoch, as seen by the host just before boot; 0 if
    /// unknown. A guest with a real-time clock of its own takes that for the seconds and this as
    /// the lower bound.
    pub realtime_ns: u64,
    /// What programs may do, as `lsm::profile` reads it; empty: no profile was asked for.
    pub profile: Vec<u8>,
    /// Of a packed image: how many of the first words of `argv` stay where others are given behind
    /// the image. The kernel does not use it.
    pub fixed_words: u32,
}

/// Why bytes are not a configuration. Offsets count from the first byte of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// It does not begin with [`MAGIC`].
    BadMagic,
    /// It is longer than [`ENCODED_MAX`].
    TooLong,
    /// A record reaches past the end.
    Truncated {
        /// Where the record begins.
        offset: usize,
    },
    /// No such record, or one that may come once came twice.
    BadTag {
        /// The tag.
        tag: u16,
        /// Where the record begins.
        offset: usize,
    },
    /// A record's bytes do not have its tag's form.
    BadValue {
        /// The tag.
        tag: u16,
        /// Where the record begins.
        offset: usize,
    },
    /// Program, arguments or working directory are absent.
    Incomplete,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMagic => f.write_str("boot configuration: bad magic"),
            Self::TooLong => write!(f, "boot configuration: longer than {ENCODED_MAX} bytes"),
            Self::Truncated { offset } => {
                write!(f, "boot configuration: record at offset {offset} is truncated")
            }
            Self::BadTag { tag, offset } => {
                write!(f, "boot configuration: bad record tag {tag} at offset {offset}")
            }
            Self::BadValue { tag, offset } => {
                write!(f, "boot configuration: bad value of record {tag} at offset {offset}")
            }
            Self::Incomplete => f.write_str("boot configuration: program, argv or cwd is missing"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// Record tags. The order of appearance in the file is the order here.
mod tag {
    pub(super) const PROGRAM: u16 = 1;
    pub(super) const ARG: u16 = 2;
    pub(super) const ENV: u16 = 3;
    pub(super) const CWD: u16 = 4;
    pub(super) const IDS: u16 = 5;
    pub(super) const GROUPS: u16 = 6;
    pub(super) const HOSTNAME: u16 = 7;
    pub(super) const ROOT: u16 = 8;
    pub(super) const RW_MOUNT: u16 = 9;
    pub(super) const HIDDEN: u16 = 10;
    pub(super) const STDIO: u16 = 11;
    pub(super) const WANT: u16 = 12;
    pub(super) const REALTIME: u16 = 13;
    pub(super) const PROFILE: u16 = 14;
    pub(super) const FIXED_WORDS: u16 = 15;
}

/// `tag`, two bytes, then `length`, four bytes.
const RECORD_HEADER_LEN: usize = 6;

impl BootConfig {
    /// Encodes. Equal configurations give equal bytes.
    ///
    /// The result decodes to the same value if it is at most [`ENCODED_MAX`] long, no string holds
    /// a NUL, and program, argv and cwd are not empty; the caller checks by decoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096);
        out.extend_from_slice(MAGIC);
        put(&mut out, tag::PROGRAM, &[&self.program]);
        self.argv.iter().for_each(|arg| put(&mut out, tag::ARG, &[arg]));
        self.env.iter().for_each(|var| put(&mut out, tag::ENV, &[var]));
        put(&mut out, tag::CWD, &[&self.cwd]);
        let ids = [self.uid, self.gid, self.umask].map(u32::to_le_bytes);
        put(&mut out, tag::IDS, &[&ids[0], &ids[1], &ids[2]]);
        let groups: Vec<u8> = self.groups.iter().flat_map(|g| g.to_le_bytes()).collect();
        put(&mut out, tag::GROUPS, &[&groups]);
        put(&mut out, tag::HOSTNAME, &[&self.hostname]);
        put(&mut out, tag::ROOT, &[&[self.root as u8]]);
        for mount in &self.rw_mounts {
            put(&mut out, tag::RW_MOUNT, &[&mount.tag, b"\0", &mount.path]);
        }
        self.hidden.iter().for_each(|path| put(&mut out, tag::HIDDEN, &[path]));
        let kinds = self.stdio.map(|kind| kind as u8);
        let (rows, cols) = (self.winsize.rows.to_le_bytes(), self.winsize.cols.to_le_bytes());
        put(&mut out, tag::STDIO, &[&kinds, &rows, &cols]);
        put(&mut out, tag::WANT, &[&[self.want.to_bits()]]);
        put(&mut out, tag::REALTIME, &[&self.realtime_ns.to_le_bytes()]);
        if !self.profile.is_empty() {
            put(&mut out, tag::PROFILE, &[&self.profile]);
        }
        if self.fixed_words != 0 {
            put(&mut out, tag::FIXED_WORDS, &[&self.fixed_words.to_le_bytes()]);
        }
        out
    }

    /// Decodes, checking every bound. Never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() > ENCODED_MAX {
            return Err(ConfigError::TooLong);
        }
        let mut rest = bytes.strip_prefix(MAGIC.as_slice()).ok_or(ConfigError::BadMagic)?;
        let mut config = Self::default();
        let mut seen = 0u32;
        while !rest.is_empty() {
            let offset = bytes.len() - rest.len();
            let truncated = ConfigError::Truncated { offset };
            let (header, body) = rest.split_at_checked(RECORD_HEADER_LEN).ok_or(truncated)?;
            let tag = u16::from_le_bytes([header[0], header[1]]);
            let len = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
            let (value, after) = body.split_at_checked(len).ok_or(truncated)?;
            let repeats = matches!(tag, tag::ARG | tag::ENV | tag::RW_MOUNT | tag::HIDDEN);
            let bit = 1u32.checked_shl(u32::from(tag)).unwrap_or(0);
            if bit == 0 || (seen & bit != 0 && !repeats) {
                return Err(ConfigError::BadTag { tag, offset });
            }
            seen |= bit;
            match config.set(tag, value) {
                Some(true) => {}
                Some(false) => return Err(ConfigError::BadTag { tag, offset }),
                None => return Err(ConfigError::BadValue { tag, offset }),
            }
            rest = after;
        }
        if config.program.is_empty() || config.argv.is_empty() || config.cwd.is_empty() {
            return Err(ConfigError::Incomplete);
        }
        Ok(config)
    }

    /// Stores one record. `Some(false)`: no such tag. `None`: the value does not have its form.
    fn set(&mut self, tag: u16, value: &[u8]) -> Option<bool> {
        match tag {
            tag::PROGRAM => self.program = string(value)?,
            tag::ARG => self.argv.push(string(value)?),
            tag::ENV => self.env.push(string(value)?),
            tag::CWD => self.cwd = string(value)?,
            tag::IDS => {
                let (ids, []) = value.as_chunks::<4>() else {
                    return None;
                };
                let [uid, gid, umask] = <[[u8; 4]; 3]>::try_from(ids).ok()?.map(u32::from_le_bytes);
                (self.uid, self.gid, self.umask) = (uid, gid, umask);
            }
            tag::GROUPS => {
                let (groups, []) = value.as_chunks::<4>() else {
                    return None;
                };
                self.groups = groups.iter().map(|g| u32::from_le_bytes(*g)).collect();
            }
            tag::HOSTNAME => self.hostname = string(value)?,
            tag::ROOT => {
                self.root = match value {
                    [0] => RootKind::Live,
                    [1] => RootKind::Packed,
                    _ => return None,
                }
            }
            tag::RW_MOUNT => {
                let nul = value.iter().position(|&byte| byte == 0)?;
                let (mount_tag, path) = (value[..nul].to_vec(), string(&value[nul + 1..])?);
                self.rw_mounts.push(RwMount { tag: mount_tag, path });
            }
            tag::HIDDEN => self.hidden.push(string(value)?),
            tag::STDIO => {
                let [a, b, c, rows @ .., c0, c1] = value else {
                    return None;
                };
                let rows = u16::from_le_bytes(rows.try_into().ok()?);
                self.stdio = [Stdio::from_byte(*a)?, Stdio::from_byte(*b)?, Stdio::from_byte(*c)?];
                self.winsize = WinSize { rows, cols: u16::from_le_bytes([*c0, *c1]) };
            }
            tag::WANT => {
                let [bits] = value else { return None };
                self.want = Want::from_bits(*bits)?;
            }
            tag::REALTIME => self.realtime_ns = u64::from_le_bytes(value.try_into().ok()?),
            // An empty one would mean that there is none.
            tag::PROFILE if value.is_empty() => return None,
            tag::PROFILE => self.profile = string(value)?,
            tag::FIXED_WORDS => self.fixed_words = u32::from_le_bytes(value.try_into().ok()?),
            _ => return Some(false),
        }
        Some(true)
    }
}

impl Stdio {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Pipe),
            1 => Some(Self::Tty),
            2 => Some(Self::Null),
            _ => None,
        }
    }
}

impl Want {
    fn to_bits(self) -> u8 {
        u8::from(self.missing_syscalls)
            | u8::from(self.syscall_summary) << 1
            | u8::from(self.missing_files) << 2
            | u8::from(self.counters) << 3
            | u8::from(self.trace) << 4
            | u8::from(self.clock) << 5
    }

    fn from_bits(bits: u8) -> Option<Self> {
        let bit = |n: u8| bits & (1 << n) != 0;
        (bits < 1 << 6).then(|| Self {
            missing_syscalls: bit(0),
            syscall_summary: bit(1),
            missing_files: bit(2),
            counters: bit(3),
            trace: bit(4),
            clock: bit(5),
        })
    }
}

/// Appends one record whose value is `parts` joined.
fn put(out: &mut Vec<u8>, tag: u16, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&tag.to_le_bytes());
    // A value over 4 GiB saturates to a length that no decoder accepts.
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// A string of the configuration: any bytes but NUL, which no C string could carry.
fn string(value: &[u8]) -> Option<Vec<u8>> {
    (!value.contains(&0)).then(|| value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn sample() -> BootConfig {
        BootConfig {
            program: b"/bin/echo".to_vec(),
            argv: vec![b"echo".to_vec(), b"".to_vec(), b"\xff".to_vec()],
            env: vec![b"A=b".to_vec()],
            cwd: b"/tmp".to_vec(),
            uid: 1000,
            gid: 1001,
            groups: vec![4, 24],
            hostname: b"limen".to_vec(),
            umask: 0o22,
            root: RootKind::Packed,
            rw_mounts: vec![RwMount { tag: b"rw0".to_vec(), path: b"/srv/x".to_vec() }],
            hidden: vec![b"/root/.ssh".to_vec()],
            stdio: [Stdio::Tty, Stdio::Pipe, Stdio::Null],
            winsize: WinSize { rows: 24, cols: 80 },
            want: Want { missing_files: true, ..Want::default() },
            realtime_ns: 1 << 60,
            profile: b"limen-profile 1 a\nend\n".to_vec(),
            fixed_words: 2,
        }
    }

    #[test]
    fn round_trip() {
        let config = sample();
        assert_eq!(BootConfig::decode(&config.encode()), Ok(config));
    }

    #[test]
    fn every_truncation_is_an_error_or_lacks_only_optional_records() {
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            match BootConfig::decode(&bytes[..len]) {
                Ok(shorter) => assert_ne!(shorter, sample()),
                Err(ConfigError::Truncated { offset }) => assert!(offset <= len),
                Err(ConfigError::BadMagic) => assert!(len < MAGIC.len()),
                Err(other) => assert_eq!(other, ConfigError::Incomplete),
            }
        }
    }

    #[test]
    fn unknown_and_repeated_records_are_named() {
        let mut bytes = sample().encode();
        let offset = bytes.len();
        put(&mut bytes, 99, &[b"x"]);
        assert_eq!(BootConfig::decode(&bytes), Err(ConfigError::BadTag { tag: 99, offset }));
        bytes.truncate(offset);
        put(&mut bytes, tag::CWD, &[b"/"]);
        let expected = ConfigError::BadTag { tag: tag::CWD, offset };
        assert_eq!(BootConfig::decode(&bytes), Err(expected));
    }

    #[test]
    fn nul_in_a_string_is_refused() {
        let config = BootConfig { cwd: b"/a\0b".to_vec(), ..sample() };
        let result = BootConfig::decode(&config.encode());
        assert!(matches!(result, Err(ConfigError::BadValue { tag: tag::CWD, .. })));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = BootConfig::decode(&bytes);
            bytes.splice(0..0, *MAGIC);
            let _ = BootConfig::decode(&bytes);
        }

        #[test]
        fn one_changed_byte_never_panics(at in 0usize..200, value: u8) {
            let mut bytes = sample().encode();
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(config) = BootConfig::decode(&bytes) {
                prop_assert_eq!(BootConfig::decode(&config.encode()), Ok(config));
            }
        }
    }
}
