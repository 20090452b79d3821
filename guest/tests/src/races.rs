//! Calls that decide by where something is, while somebody else moves it: path walks against
//! renames and mounts, who has which id against processes that come, go and change groups, a file's
//! end against processes that map it. Each test checks an invariant in every round, never who wins.
//!
//! Manual pages: openat2(2), path_resolution(7), getcwd(3), rename(2), mount(2), setpgid(2),
//! kill(2), proc(5), mmap(2).

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::sys::*;
use crate::{sc, tests};

tests!("races":
    beneath_against_rename, in_root_against_rename, beneath_against_exchange,
    getcwd_against_renames, proc_links_against_renames, no_cycles_by_renames,
    bind_mount_keeps_its_part, groups_keep_their_members, processes_are_listed_once,
    ids_are_given_out_once, truncation_reaches_new_processes,
);

/// Rounds of a test: at two CPUs enough to meet each bug when it was there.
const ROUNDS: u32 = 40_000;

/// Runs `other` over and over in another process while `f` runs here.
fn against(other: impl Fn(), f: impl FnOnce()) {
    let stop: &AtomicU32 = &new_shared()[0];
    stop.store(0, SeqCst);
    let pid = fork(|| {
        while stop.load(SeqCst) == 0 {
            other();
        }
        0
    });
    f();
    stop.store(1, SeqCst);
    wait_code(pid, 0);
}

fn rename(from: &str, to: &str) -> Res {
    sc!(SYS_rename, c(from).as_ptr(), c(to).as_ptr())
}

/// A scope (`in`) in a directory, the same names in both, and contents that tell which is which.
fn scope() -> (String, i32) {
    let d = dir();
    for path in ["in", "in/a", "in/a/b", "out", "out/b"] {
        std::fs::create_dir(format!("{d}/{path}")).unwrap();
    }
    for path in ["in/file", "in/a/file"] {
        std::fs::write(format!("{d}/{path}"), "inside").unwrap();
    }
    for path in ["file", "out/file"] {
        std::fs::write(format!("{d}/{path}"), "outside").unwrap();
    }
    let fd = open(&format!("{d}/in"), O_PATH | O_DIRECTORY).fd();
    (d, fd)
}

/// Opens `path` in the scope again and again; nothing outside may come of it.
fn stays_inside(scope: i32, resolve: u64, paths: &[&str]) {
    let paths: Vec<_> = paths.iter().map(|path| c(path)).collect();
    let how = [O_RDONLY as u64, 0, resolve];
    let mut opened = 0;
    for round in 0..ROUNDS {
        let path = &paths[round as usize % paths.len()];
        match sc!(SYS_openat2, scope, path.as_ptr(), how.as_ptr(), size_of_val(&how)) {
            Ok(fd) => {
                assert_eq!(read(fd as i32, 16), b"inside", "{path:?} in round {round}");
                close(fd as i32);
                opened += 1;
            }
            Err(EAGAIN | ENOENT | EXDEV) => {}
            Err(error) => panic!("{path:?}: {}", errno_name(error)),
        }
    }
    assert!(opened > 0, "nothing could ever be opened");
}

/// The dots give the other process time to move `b` away.
const CLIMBS: [&str; 3] = [
    "a/b/./././././././././././././././../file",
    "a/b/./././././././././././././././../../file",
    "a/b/././././../../a/b/././././././../file",
];

fn beneath_against_rename() {
    let (d, fd) = scope();
    let (inside, outside) = (format!("{d}/in/a/b"), format!("{d}/b"));
    let swing = || {
        rename(&inside, &outside).is(0);
        rename(&outside, &inside).is(0);
    };
    against(swing, || stays_inside(fd, RESOLVE_BENEATH, &CLIMBS));
}

fn in_root_against_rename() {
    let (d, fd) = scope();
    let (inside, outside) = (format!("{d}/in/a/b"), format!("{d}/b"));
    let swing = || {
        rename(&inside, &outside).is(0);
        rename(&outside, &inside).is(0);
    };
    against(swing, || stays_inside(fd, RESOLVE_IN_ROOT, &CLIMBS));
}

fn beneath_against_exchange() {
    let (d, fd) = scope();
    let (inside, outside) = (c(&format!("{d}/in/a/b")), c(&format!("{d}/out/b")));
    let swing = || {
        let how = (AT_FDCWD, RENAME_EXCHANGE);
        sc!(SYS_renameat2, how.0, inside.as_ptr(), how.0, outside.as_ptr(), how.1).is(0);
    };
    against(swing, || stays_inside(fd, RESOLVE_BENEATH, &CLIMBS));
}

/// Moves `m` between `a` and `b`, and gives `b` another name while `m` is in `a`: so there never is
/// a path through that other name.
fn swing_and_rename(d: &str) {
    rename(&format!("{d}/a/m"), &format!("{d}/b/m")).is(0);
    rename(&format!("{d}/b/m"), &format!("{d}/a/m")).is(0);
    rename(&format!("{d}/b"), &format!("{d}/never")).is(0);
    rename(&format!("{d}/never"), &format!("{d}/b")).is(0);
}

fn moving_tree() -> String {
    let d = dir();
    std::fs::create_dir_all(format!("{d}/a/m/n/o")).unwrap();
    std::fs::create_dir(format!("{d}/b")).unwrap();
    d
}

fn getcwd_against_renames() {
    let d = moving_tree();
    std::env::set_current_dir(format!("{d}/a/m/n/o")).unwrap();
    let known = [format!("{d}/a/m/n/o\0"), format!("{d}/b/m/n/o\0")];
    against(
        || swing_and_rename(&d),
        || {
            let mut path = [0u8; 256];
            for _ in 0..ROUNDS {
                let len = sc!(SYS_getcwd, path.as_mut_ptr(), path.len()).must();
                let path = std::str::from_utf8(&path[..len]).unwrap();
                assert!(known.iter().any(|known| known == path), "{path:?} never was");
            }
        },
    );
}

fn proc_links_against_renames() {
    let d = moving_tree();
    let fd = open(&format!("{d}/a/m/n/o"), O_PATH).fd();
    let known = [format!("{d}/a/m/n/o"), format!("{d}/b/m/n/o")];
    let link = c(&format!("/proc/self/fd/{fd}"));
    against(
        || swing_and_rename(&d),
        || {
            let mut path = [0u8; 256];
            for _ in 0..ROUNDS {
                let len = sc!(SYS_readlink, link.as_ptr(), path.as_mut_ptr(), path.len()).must();
                let path = std::str::from_utf8(&path[..len]).unwrap();
                assert!(known.iter().any(|known| known == path), "{path:?} never was");
            }
        },
    );
}

/// `x` into `y` against `y` into `x`: one of them at most, or both would be lost.
fn no_cycles_by_renames() {
    let d = dir();
    let (x, y) = (format!("{d}/x"), format!("{d}/y"));
    let (x_in_y, y_in_x) = (format!("{y}/x"), format!("{x}/y"));
    for path in [&x, &y] {
        std::fs::create_dir(path).unwrap();
    }
    let into = |from: &str, to: &str, back: bool| match rename(from, to) {
        Ok(_) if back => rename(to, from).is(0),
        Ok(_) | Err(ENOENT | EINVAL) => {}
        Err(error) => panic!("{}", errno_name(error)),
    };
    against(
        || into(&x, &x_in_y, true),
        || {
            for _ in 0..ROUNDS {
                into(&y, &y_in_x, true);
            }
        },
    );
    let both = [&x, &y].iter().all(|path| std::fs::metadata(path).is_ok());
    assert!(both, "a directory is nowhere");
}

/// A bind mount shows a directory; who stands in one that is moved out of it does not climb on.
fn bind_mount_keeps_its_part() {
    // The host's mounts are its own; where there is one name space for all, the test has the VM.
    own_mounts();
    let d = dir();
    std::fs::create_dir_all(format!("{d}/shown/part/deep")).unwrap();
    std::fs::create_dir_all(format!("{d}/hidden")).unwrap();
    std::fs::create_dir(format!("{d}/mnt")).unwrap();
    let (part, mnt) = (c(&format!("{d}/shown")), c(&format!("{d}/mnt")));
    sc!(SYS_mount, part.as_ptr(), mnt.as_ptr(), 0, MS_BIND, 0).is(0);
    let fd = open(&format!("{d}/mnt/part/deep"), O_PATH).fd();
    let up = |path: &std::ffi::CStr| sc!(SYS_openat, fd, path.as_ptr(), O_PATH);
    close(up(c"../..").fd());
    rename(&format!("{d}/shown/part"), &format!("{d}/hidden/part")).is(0);
    // Its own parent went with it, and is no more in the mount either.
    up(c"..").fails(ENOENT);
    up(c"../../..").fails(ENOENT);
    rename(&format!("{d}/hidden/part"), &format!("{d}/shown/part")).is(0);
    close(up(c"../..").fd());
    close(fd);
    sc!(SYS_umount2, mnt.as_ptr(), 0).is(0);
}

/// Processes that swing between three groups and their own. None is ever in two, or in none.
fn groups_keep_their_members() {
    const MOVERS: usize = 3;
    let shared = new_shared();
    let (stop, ids) = (&shared[0], &shared[1..=MOVERS]);
    let home = sc!(SYS_getpgid, 0).must() as i32;
    let movers: Vec<i32> = (0..MOVERS)
        .map(|own| {
            fork(|| {
                sc!(SYS_setpgid, 0, 0).is(0);
                ids[own].store(pid() as u32, SeqCst);
                while stop.load(SeqCst) == 0 {
                    for other in ids {
                        // Of one that has not begun yet, or is elsewhere: there is no such group.
                        let _ = sc!(SYS_setpgid, 0, other.load(SeqCst));
                        sc!(SYS_setpgid, 0, home).is(0);
                    }
                }
                0
            })
        })
        .collect();
    ids.iter().for_each(|id| until(|| id.load(SeqCst) != 0));
    for _ in 0..ROUNDS / 10 {
        for &mover in &movers {
            let group = sc!(SYS_getpgid, mover).must() as i32;
            assert!(group == home || movers.contains(&group), "{mover} is in {group}");
            let there = sc!(SYS_kill, -mover, 0);
            assert!(matches!(there, Ok(0) | Err(ESRCH)), "kill: {there:?}");
        }
    }
    stop.store(1, SeqCst);
    // The last move of each is home. There its parent puts it into a group that gets a signal.
    let members = [fork(sleep_for_ever), fork(sleep_for_ever)];
    members.iter().for_each(|&member| sc!(SYS_setpgid, member, members[0]).is(0));
    movers.iter().for_each(|&mover| wait_code(mover, 0));
    movers.iter().for_each(|&mover| sc!(SYS_kill, -mover, 0).fails(ESRCH));
    sc!(SYS_kill, -members[0], SIGKILL).is(0);
    members.iter().for_each(|&member| wait_signal(member, SIGKILL));
    sc!(SYS_kill, -members[0], 0).fails(ESRCH);
}

fn sleep_for_ever() -> i32 {
    loop {
        nap(1000);
    }
}

/// A process that forks and waits all the time, twice.
fn forking(stop: &'static AtomicU32) -> [i32; 2] {
    [(); 2].map(|()| {
        fork(|| {
            while stop.load(SeqCst) == 0 {
                wait_code(fork(|| 0), 0);
            }
            0
        })
    })
}

/// /proc lists ids in order, each once, and leaves out nobody who was there all the time.
fn processes_are_listed_once() {
    let stop = &new_shared()[0];
    let others = forking(stop);
    let mut stay = vec![pid(), others[0], others[1]];
    stay.extend((0..3).map(|_| fork(sleep_for_ever)));
    for round in 0..300 {
        let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
        let ids: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "round {round}: {ids:?}");
        let missing: Vec<_> = stay.iter().filter(|pid| !ids.contains(pid)).collect();
        assert!(missing.is_empty(), "round {round}: {missing:?} of {stay:?} are not in {ids:?}");
    }
    stop.store(1, SeqCst);
    others.iter().for_each(|&other| wait_code(other, 0));
    for &sleeper in &stay[3..] {
        sc!(SYS_kill, sleeper, SIGKILL).is(0);
        wait_signal(sleeper, SIGKILL);
    }
}

/// Two that fork at once never have children of one id, and the id of a child means that child
/// until it has been waited for.
fn ids_are_given_out_once() {
    let stop = &new_shared()[0];
    let others = forking(stop);
    for _ in 0..200 {
        let children: Vec<i32> = (0..4).map(|_| fork(|| 0)).collect();
        for &child in &children {
            assert_eq!(sc!(SYS_kill, child, 0), Ok(0), "a child or a zombie");
            assert!(!others.contains(&child));
        }
        children.iter().for_each(|&child| wait_code(child, 0));
    }
    stop.store(1, SeqCst);
    others.iter().for_each(|&other| wait_code(other, 0));
}

/// A file becomes shorter while who maps it forks: the child does not keep what lay behind the end.
fn truncation_reaches_new_processes() {
    const PAGE: usize = 4096;
    const TURNS: u32 = 300;
    let path = format!("{}/file", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
    let mapped = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0).must();
    let second = (mapped + PAGE) as *mut u8;
    let shared = new_shared();
    let (ready, go, done, over) = (&shared[0], &shared[1], &shared[2], &shared[3]);
    let forking = fork(|| {
        for turn in 1..=TURNS {
            // SAFETY: a page of the mapping and of the file, which has both pages now.
            unsafe { second.write_volatile(5) };
            ready.store(turn, SeqCst);
            while go.load(SeqCst) != turn {
                let _ = sc!(SYS_sched_yield);
            }
            let child = fork(|| {
                until_at_least(done, turn);
                // SAFETY: as above: the file has both pages again.
                i32::from(unsafe { second.read_volatile() } != 7)
            });
            wait_code(child, 0);
            over.store(turn, SeqCst);
        }
        0
    });
    for turn in 1..=TURNS {
        until_at_least(ready, turn);
        go.store(turn, SeqCst);
        (0..turn * 40).for_each(|_| std::hint::spin_loop());
        sc!(SYS_ftruncate, fd, PAGE).is(0);
        sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
        sc!(SYS_pwrite64, fd, [7u8].as_ptr(), 1, PAGE).is(1);
        done.store(turn, SeqCst);
        until_at_least(over, turn);
    }
    wait_code(forking, 0);
}
