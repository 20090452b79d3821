//! File handles (name_to_handle_at(2), open_by_handle_at(2)).

use crate::sys::*;
use crate::{sc, tests};

tests! { "handles": find_again, stale, refused }

const AT_HANDLE_FID: i32 = 0x200;
const AT_HANDLE_MNT_ID_UNIQUE: i32 = 1;
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// `struct file_handle` with all the room there may be.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

/// One that takes any.
const ROOM: Handle = Handle { bytes: 128, kind: 0, data: [0; 128] };

fn ask(path: &str, flags: i32, handle: &mut Handle) -> Result<usize, i32> {
    let mut mount = -1i32;
    let path = c(path);
    sc!(SYS_name_to_handle_at, AT_FDCWD, path.as_ptr(), &raw mut *handle, &raw mut mount, flags)
}

fn handle_of(path: &str) -> Handle {
    let mut handle = ROOM;
    ask(path, 0, &mut handle).is(0);
    assert!((1..=128).contains(&handle.bytes), "{}", handle.bytes);
    handle
}

fn opened(mount: i32, handle: &Handle, flags: i32) -> Result<usize, i32> {
    sc!(SYS_open_by_handle_at, mount, std::ptr::from_ref(handle), flags)
}

fn find_again() {
    let d = dir();
    let (file, folder, link) = (format!("{d}/f"), format!("{d}/d"), format!("{d}/l"));
    std::fs::write(&file, "what it says").unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("f", &link).unwrap();
    let mount = open(&d, O_RDONLY).fd();
    let mut short = Handle { bytes: 0, ..ROOM };
    ask(&file, 0, &mut short).fails(EOVERFLOW);
    let handle = handle_of(&file);
    assert_eq!(short.bytes, handle.bytes, "what it takes is told");
    // The same each time, and whatever the name.
    std::fs::rename(&file, format!("{folder}/g")).unwrap();
    let again = handle_of(&format!("{folder}/g"));
    let bytes = |handle: &Handle| handle.data[..handle.bytes as usize].to_vec();
    assert_eq!((bytes(&again), again.kind), (bytes(&handle), handle.kind));
    let fd = opened(mount, &handle, O_RDWR).fd();
    let mut text = [0u8; 64];
    sc!(SYS_read, fd, text.as_mut_ptr(), 64).is(12);
    assert_eq!(&text[..12], b"what it says");
    write(fd, b", and more");
    assert_eq!(std::fs::read(format!("{folder}/g")).unwrap(), b"what it says, and more");
    close(fd);
    // A folder, and what is looked up in it.
    let fd = opened(mount, &handle_of(&folder), O_RDONLY | O_DIRECTORY).fd();
    let inner = sc!(SYS_openat, fd, c"g".as_ptr(), O_RDONLY).fd();
    close(inner);
    close(fd);
    // A link is itself, and what it leads to if asked.
    let mut followed = ROOM;
    std::fs::rename(format!("{folder}/g"), &file).unwrap();
    ask(&link, AT_SYMLINK_FOLLOW, &mut followed).is(0);
    assert_eq!(bytes(&followed), bytes(&handle));
    let own = handle_of(&link);
    assert_ne!(bytes(&own), bytes(&handle));
    opened(mount, &own, O_RDONLY).fails(ELOOP);
    let fd = opened(mount, &own, O_PATH).fd();
    let len = sc!(SYS_readlinkat, fd, c"".as_ptr(), text.as_mut_ptr(), 64).must();
    assert_eq!(&text[..len], b"f");
    close(fd);
    let fd = opened(AT_FDCWD, &handle, O_RDONLY);
    // The working directory is of the same file system, or of another.
    assert!(fd.is_ok() || fd == Err(ESTALE), "{fd:?}");
    opened(mount, &handle, O_RDONLY | O_DIRECTORY).fails(ENOTDIR);
    let mut id = ROOM;
    ask(&file, AT_HANDLE_FID, &mut id).is(0);
    // The number of the mount that no other gets, of 64 bits.
    let (path, mut mount, mut of) = (c(&file), 0u64, [0u64; 32]);
    let unique = AT_HANDLE_MNT_ID_UNIQUE;
    sc!(SYS_name_to_handle_at, AT_FDCWD, path.as_ptr(), &raw mut id, &raw mut mount, unique).is(0);
    sc!(SYS_statx, AT_FDCWD, path.as_ptr(), 0, STATX_MNT_ID_UNIQUE, of.as_mut_ptr()).is(0);
    assert_eq!(of[0] & 0x5000, u64::from(STATX_MNT_ID_UNIQUE), "one of both: {:#x}", of[0]);
    assert_eq!(of[18], mount);
}

/// What has gone is not found, however many handles were given and whatever was made since.
fn stale() {
    let d = dir();
    let mount = open(&d, O_RDONLY).fd();
    let file = format!("{d}/f");
    for round in 0..300 {
        std::fs::write(&file, round.to_string()).unwrap();
        let handle = handle_of(&file);
        let fd = opened(mount, &handle, O_RDONLY).fd();
        std::fs::remove_file(&file).unwrap();
        // Whoever has it open keeps it.
        close(opened(mount, &handle, O_RDONLY).fd());
        close(fd);
        opened(mount, &handle, O_RDONLY).fails(ESTALE);
    }
}

fn refused() {
    let d = dir();
    let file = format!("{d}/f");
    std::fs::write(&file, "x").unwrap();
    let mount = open(&d, O_RDONLY).fd();
    let handle = handle_of(&file);
    let mut other = Handle { bytes: 129, ..handle };
    ask(&file, 0, &mut other).fails(EINVAL);
    ask(&file, 0x10, &mut other).fails(EINVAL);
    ask("", 0, &mut other).fails(ENOENT);
    ask(&format!("{d}/none"), 0, &mut other).fails(ENOENT);
    sc!(SYS_name_to_handle_at, AT_FDCWD, c(&file).as_ptr(), 0, 0, 0).fails(EFAULT);
    for bytes in [0, 129] {
        opened(mount, &Handle { bytes, ..handle }, O_RDONLY).fails(EINVAL);
    }
    opened(mount, &Handle { kind: 0x7e, ..handle }, O_RDONLY).fails(ESTALE);
    opened(mount, &Handle { bytes: 4, ..handle }, O_RDONLY).fails(ESTALE);
    opened(-1, &handle, O_RDONLY).fails(EBADF);
    sc!(SYS_open_by_handle_at, mount, 0, O_RDONLY).fails(EFAULT);
    // /proc finds nothing by a handle.
    let mut none = Handle { bytes: 128, ..handle };
    ask("/proc/self", 0, &mut none).fails(EOPNOTSUPP);
    wait_code(
        fork(|| {
            sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
            opened(mount, &handle, O_RDONLY).fails(EPERM);
            0
        }),
        0,
    );
}
