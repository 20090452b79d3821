//! Device numbers: a major and a minor one in a word (makedev(3)).

/// Packs a device number as makedev(3) does.
#[must_use]
pub const fn make_device(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// The major number of a packed device number.
#[must_use]
pub const fn major(device: u64) -> u32 {
    ((device >> 8 & 0xfff) | (device >> 32 & !0xfff)) as u32
}

/// The minor number of a packed device number.
#[must_use]
pub const fn minor(device: u64) -> u32 {
    ((device & 0xff) | (device >> 12 & !0xff)) as u32
}
