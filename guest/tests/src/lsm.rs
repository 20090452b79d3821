//! The policies as programs see them: lsm_list_modules(2), lsm_get_self_attr(2),
//! lsm_set_self_attr(2), /proc/PID/attr, on a system that labels nothing.
//!
//! A host whose kernel has none of it, or labels processes, has nothing to compare with.

use crate::sys::*;
use crate::{sc, tests};

tests!("lsm": which_policies, labels_are_not_read, labels_are_not_written, files_of_labels);

const GET: i64 = 459;
const SET: i64 = 460;
const LIST: i64 = 461;

/// LSM_ID_CAPABILITY, LSM_ID_LOCKDOWN, LSM_ID_YAMA, LSM_ID_LANDLOCK.
const CAPABILITY: u64 = 100;
const LOCKDOWN: u64 = 108;
const YAMA: u64 = 107;
const LANDLOCK: u64 = 110;
/// LSM_ATTR_CURRENT.
const CURRENT: u32 = 100;

/// The ids of the policies; `None` where the call, or another kind of policy, is.
fn policies() -> Option<Vec<u64>> {
    let (mut ids, mut size) = ([0_u64; 32], 256_u32);
    let count = match sc!(LIST, ids.as_mut_ptr(), &raw mut size, 0) {
        Err(ENOSYS) => {
            let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
            assert!(!kernel.contains("limen"), "this kernel has policies");
            return None;
        }
        count => count.must(),
    };
    assert_eq!(size as usize, count * 8);
    // SELinux, SMACK, TOMOYO, AppArmor: these have labels.
    let label = |id: &u64| (101..=104).contains(id);
    let ids = ids[..count].to_vec();
    (!ids.iter().any(label)).then_some(ids)
}

fn which_policies() {
    let Some(ids) = policies() else { return };
    // Lockdown is there before the others.
    assert_eq!(ids.iter().find(|id| **id != LOCKDOWN), Some(&CAPABILITY), "{ids:?}");
    assert!(ids.contains(&YAMA) || ids.contains(&LANDLOCK), "{ids:?}");
    let list = |ids: *mut u64, size: *mut u32, flags: u32| sc!(LIST, ids, size, flags);
    let (mut room, mut size) = ([0_u64; 32], 256_u32);
    list(room.as_mut_ptr(), &raw mut size, 1).fails(EINVAL);
    list(std::ptr::null_mut(), &raw mut size, 0).fails(EFAULT);
    list(room.as_mut_ptr(), std::ptr::null_mut(), 0).fails(EFAULT);
    // Too little room: how much it takes is told, and nothing else.
    size = 4;
    room = [0; 32];
    list(room.as_mut_ptr(), &raw mut size, 0).fails(E2BIG);
    assert_eq!((size as usize, room), (ids.len() * 8, [0; 32]));
    size = (ids.len() * 8) as u32;
    list(room.as_mut_ptr(), &raw mut size, 0).is(ids.len());
}

fn labels_are_not_read() {
    if policies().is_none() {
        return;
    }
    let get = |attribute: u32, context: *mut u64, size: *mut u32, flags: u32| {
        sc!(GET, attribute, context, size, flags)
    };
    let nobody = std::ptr::null_mut();
    let mut context = [LANDLOCK, 0, 0, 0];
    let context = context.as_mut_ptr();
    for attribute in [CURRENT, CURRENT + 5, CURRENT + 6, 99] {
        let mut size = 32;
        get(attribute, context, &raw mut size, 0).fails(EOPNOTSUPP);
        assert_eq!(size, 0, "nothing was written");
        get(attribute, nobody, &raw mut size, 0).fails(EOPNOTSUPP);
        get(attribute, context, &raw mut size, 1).fails(EOPNOTSUPP);
    }
    let mut size = 32;
    get(0, context, &raw mut size, 0).fails(EINVAL);
    get(CURRENT, context, nobody.cast(), 0).fails(EINVAL);
    get(CURRENT, context, &raw mut size, 2).fails(EINVAL);
    get(CURRENT, nobody, &raw mut size, 1).fails(EINVAL);
    get(CURRENT, 8 as *mut u64, &raw mut size, 1).fails(EFAULT);
    get(CURRENT, context, 8 as *mut u32, 0).fails(EFAULT);
    let mut undefined = [0_u64; 4];
    get(CURRENT, undefined.as_mut_ptr(), &raw mut size, 1).fails(EINVAL);
    assert_eq!(size, 32);
}

fn labels_are_not_written() {
    if policies().is_none() {
        return;
    }
    // A header with a context behind it: id, flags, bytes of both, bytes of the context.
    let set = |header: [u64; 4], attribute: u32, size: usize, flags: u32| {
        let mut whole = [0_u64; 640];
        whole[..4].copy_from_slice(&header);
        sc!(SET, attribute, whole.as_ptr(), size, flags)
    };
    for attribute in [0, CURRENT, CURRENT + 6] {
        for id in [0, CAPABILITY, LANDLOCK, 9999] {
            set([id, 0, 32, 0], attribute, 32, 0).fails(EOPNOTSUPP);
            set([id, 0, 40, 8], attribute, 40, 0).fails(EOPNOTSUPP);
            set([id, 1, 40, 8], attribute, 48, 0).fails(EOPNOTSUPP);
            set([id, 0, 32, 0], attribute, 31, 0).fails(EINVAL);
            set([id, 0, 31, 0], attribute, 32, 0).fails(EINVAL);
            set([id, 0, 33, 0], attribute, 32, 0).fails(EINVAL);
            set([id, 0, 32, 1], attribute, 32, 0).fails(EINVAL);
            set([id, 0, 40, u64::MAX], attribute, 40, 0).fails(EINVAL);
            set([id, 0, 40, 8], attribute, 40, 1).fails(EINVAL);
            set([id, 0, 40, 8], attribute, 4097, 0).fails(E2BIG);
            set([id, 0, 40, 8], attribute, 4096, 0).fails(EOPNOTSUPP);
        }
    }
    sc!(SET, CURRENT, 0, 40, 0).fails(EFAULT);
}

fn files_of_labels() {
    if policies().is_none() {
        return;
    }
    for name in ["current", "exec", "fscreate", "keycreate", "prev", "sockcreate"] {
        let path = format!("/proc/self/attr/{name}");
        let (fd, mut room) = (open(&path, O_RDONLY).fd(), [0_u8; 8]);
        sc!(SYS_read, fd, room.as_mut_ptr(), 8).fails(EINVAL);
        close(fd);
        if name != "prev" {
            let fd = open(&path, O_WRONLY).fd();
            sc!(SYS_write, fd, c"label".as_ptr(), 5).fails(EINVAL);
            close(fd);
        }
    }
    open("/proc/self/attr/none", O_RDONLY).fails(ENOENT);
}
