//! Signals about files: O_ASYNC, F_SETOWN, F_SETOWN_EX and F_SETSIG (fcntl(2)), SIGIO and SIGURG
//! (signal(7)).
//!
//! Why it is hard: the signal is sent where readiness changes, under the locks of whoever changes
//! it, and must be there when that call returns. So a file that signals is on its own queues as a
//! poll would be, by a [`Notifier`], and sending takes only locks that interrupts may take. The
//! notifier refers to nothing that refers to the file: the file holds its registration.
//!
//! Pipes, sockets, terminals and inotify signal; others take the settings and signal only that a
//! lease is to be given up (F_SETLEASE), whose commands are here for that.

use alloc::collections::BTreeSet;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::base::poll::{PollTable, events};
use crate::base::sync::Wake;
use crate::process::hooks;
use crate::process::signal::SigInfo;
use crate::process::signal::send::{send_to_process, send_to_thread};
use crate::process::{Pid, all_processes, group_members};
use crate::process::{Process, Thread, current, find_by_tid, find_process, find_thread};
use crate::security::Capability;
use crate::security::landlock::{Fence, signal_fence};
use crate::vfs::file::Notice;
use crate::vfs::hooks::path_notify;
use crate::vfs::leases::{self, Holder, LeaseKind};
use crate::vfs::{File, FileType, Inode, inotify};

/// `struct f_owner_ex` (fcntl(2)).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(C)]
pub struct OwnerEx {
    kind: i32,
    pid: i32,
}

const OWNER_THREAD: i32 = 0;
const OWNER_PROCESS: i32 = 1;
const OWNER_GROUP: i32 = 2;
const SIGNALS: u64 = 64;

/// Reasons in si_code (sigaction(2)), and their bits in si_band.
const POLL_IN: (i32, u32) = (1, events::READABLE);
const POLL_OUT: (i32, u32) = (2, events::WRITABLE | events::WRBAND);
/// POLLMSG means nothing to poll(2), and is shown here only.
const POLL_MSG: (i32, u32) = (3, events::READABLE | 0x400);
const POLL_PRI: (i32, u32) = (5, events::PRI | events::RDBAND);
const POLL_HUP: (i32, u32) = (6, events::HUP | events::ERR);

#[derive(Clone, Default)]
enum Target {
    #[default]
    Nobody,
    Thread(Arc<Thread>),
    Process(Arc<Process>),
    Group(Pid),
}

/// What the program has set.
#[derive(Clone, Default)]
struct Settings {
    /// Somebody has been named, who may have gone, or never been there.
    is_owned: bool,
    /// As it was given, for F_GETOWN.
    kind: i32,
    id: i32,
    target: Target,
    /// Who has set it: only who they may signal gets one.
    uids: [u32; 2],
    fence: Fence,
    /// Their process, which no fence keeps them from.
    setter: Weak<Process>,
    /// 0: SIGIO, without information.
    signal: u32,
    /// The descriptor, for si_fd.
    fd: u32,
    is_async: bool,
}

/// What is on the queues of a file that signals.
#[derive(Default)]
struct Notifier {
    settings: SpinLock<Settings>,
    can_read: bool,
    can_write: bool,
}

impl Wake for Notifier {
    fn wake(&self, happened: u32) -> bool {
        let settings = self.settings.lock().clone();
        if happened & events::PRI != 0 {
            settings.send(SigInfo::kernel(raw::SIGURG));
        }
        let known = happened & !events::ERR;
        let reason = match known {
            _ if !settings.is_async => None,
            0 if self.can_read => Some(POLL_IN),
            // The other end of what it writes to has gone.
            0 if happened & events::ERR != 0 => Some(POLL_OUT),
            _ if known & events::PRI != 0 => Some(POLL_PRI),
            _ if known & events::HUP != 0 => Some(POLL_HUP),
            _ if known & events::READABLE != 0 && self.can_read => Some(POLL_IN),
            _ if known & events::WRITABLE != 0 && self.can_write => Some(POLL_OUT),
            _ => None,
        };
        if let Some((code, band)) = reason {
            let info = match settings.signal {
                0 => SigInfo::kernel(raw::SIGIO),
                signal => SigInfo::about_file(signal, code, band, settings.fd),
            };
            settings.send(info);
        }
        // It uses up nobody's exclusive wake-up.
        false
    }
}

/// A lease of the file is to be given up.
impl Holder for Notifier {
    fn tell(&self) {
        let settings = self.settings.lock().clone();
        let (code, band) = POLL_MSG;
        let info = match settings.signal {
            0 => SigInfo::kernel(raw::SIGIO),
            signal => SigInfo::about_file(signal, code, band, settings.fd),
        };
        settings.send(info);
    }
}

impl Settings {
    /// Signals about this descriptor go to the process that runs, unless somebody has been named.
    /// Linux names the process by the thread's id, which finds nobody where that is not its first.
    fn own_by_default(&mut self, fd: u32) {
        self.fd = fd;
        if self.is_owned {
            return;
        }
        let (thread, credentials) = (current(), current().credentials());
        (self.is_owned, self.kind, self.id) = (true, OWNER_PROCESS, thread.tid() as i32);
        if thread.tid() == thread.process.pid {
            self.target = Target::Process(thread.process.clone());
        }
        self.uids = [credentials.uid, credentials.euid];
    }

    /// The owner's id; 0 where there is none, or it has gone.
    fn living_id(&self) -> i32 {
        let id = self.id as Pid;
        let is_there = match &self.target {
            Target::Nobody => false,
            // The first thread can be named as long as its process can.
            Target::Thread(thread) => {
                let is_first = |known: &Arc<Process>| {
                    known.pid == thread.tid() && Arc::ptr_eq(known, &thread.process)
                };
                find_thread(id).is_some_and(|known| Arc::ptr_eq(&known, thread))
                    || find_process(id).is_some_and(|known| is_first(&known))
            }
            Target::Process(process) => {
                find_process(id).is_some_and(|known| Arc::ptr_eq(&known, process))
            }
            Target::Group(group) => !group_members(*group).is_empty(),
        };
        if is_there { self.id } else { 0 }
    }

    fn send(&self, info: SigInfo) {
        match &self.target {
            Target::Nobody => {}
            Target::Thread(thread) if self.may_signal(&thread.process, info) => {
                if send_to_thread(thread, info).is_err() {
                    let _ = send_to_thread(thread, SigInfo::kernel(raw::SIGIO));
                }
            }
            Target::Thread(_) => {}
            Target::Process(process) => self.send_to(process, info),
            Target::Group(group) => {
                group_members(*group).iter().for_each(|process| self.send_to(process, info));
            }
        }
    }

    fn send_to(&self, process: &Arc<Process>, info: SigInfo) {
        // A full queue of real-time signals is told by SIGIO, which is never refused.
        if self.may_signal(process, info) && send_to_process(process, info).is_err() {
            let _ = send_to_process(process, SigInfo::kernel(raw::SIGIO));
        }
    }

    /// As kill(2) decides, for who has set the owner.
    fn may_signal(&self, process: &Process, info: SigInfo) -> bool {
        let credentials = process.credentials();
        let theirs = [credentials.uid, credentials.suid];
        let [uid, euid] = self.uids;
        let is_theirs = euid == 0 || theirs.contains(&uid) || theirs.contains(&euid);
        let is_own = core::ptr::eq(self.setter.as_ptr(), process);
        let fence = if is_own { &Fence::open() } else { &self.fence };
        is_theirs && hooks::file_send_sigiotask((fence, process, info.number())).is_ok()
    }
}

/// The notifier of a file, made at the first setting.
fn notifier(file: &Arc<File>) -> Arc<Notifier> {
    let fresh = Arc::new(Notifier {
        settings: SpinLock::default(),
        can_read: file.check_readable().is_ok(),
        can_write: file.check_writable().is_ok(),
    });
    let mut notice = file.notice.lock();
    let notice = notice.get_or_insert_with(|| Notice { settings: fresh, registration: None });
    notice.settings.clone().downcast().unwrap_or_default()
}

/// Puts the notifier on the file's queues, once. ENOMEM.
fn register(file: &Arc<File>, notifier: &Arc<Notifier>) -> Result<()> {
    if file.notice.lock().as_ref().is_some_and(|notice| notice.registration.is_some()) {
        return Ok(());
    }
    let mut table = PollTable::register(notifier.clone(), false);
    let _ = file.ops().poll(file, &mut table);
    table.check()?;
    let mut unused = None;
    if let Some(notice) = &mut *file.notice.lock() {
        unused = notice.registration.replace(table);
    }
    drop(unused);
    Ok(())
}

fn known(file: &File) -> Settings {
    let notice = file.notice.lock().as_ref().map(|notice| notice.settings.clone());
    let notifier = notice.and_then(|any| any.downcast::<Notifier>().ok());
    notifier.map_or(Settings::default(), |notifier| notifier.settings.lock().clone())
}

fn change(file: &Arc<File>, change: impl FnOnce(&mut Settings)) -> Result<()> {
    let notifier = notifier(file);
    let mut settings = known(file);
    change(&mut settings);
    let signals = file.ops().has_io_signals();
    // What it replaces is dropped behind the lock.
    let old = core::mem::replace(&mut *notifier.settings.lock(), settings);
    drop(old);
    if signals { register(file, &notifier) } else { Ok(()) }
}

/// O_ASYNC is set or cleared; whether the file has it. One that has no such signals keeps what it
/// has by a lease.
pub fn set_async(file: &Arc<File>, fd: u32, is_async: bool) -> Result<bool> {
    if !file.ops().has_io_signals() {
        return Ok(file.flags() & raw::FASYNC != 0);
    }
    if is_async || known(file).is_async {
        change(file, |settings| (settings.is_async, settings.fd) = (is_async, fd))?;
    }
    Ok(is_async)
}

/// F_SETOWN: a process, or a group by its negative id; 0: nobody. ESRCH, EINVAL.
pub fn set_owner(file: &Arc<File>, id: i32) -> Result<()> {
    match id {
        i32::MIN => Err(Errno::EINVAL),
        0.. => own(file, OwnerEx { kind: OWNER_PROCESS, pid: id }),
        _ => own(file, OwnerEx { kind: OWNER_GROUP, pid: -id }),
    }
}

/// F_SETOWN_EX. ESRCH, EINVAL.
pub fn own(file: &Arc<File>, owner: OwnerEx) -> Result<()> {
    if !(OWNER_THREAD..=OWNER_GROUP).contains(&owner.kind) {
        return Err(Errno::EINVAL);
    }
    let id = owner.pid as Pid;
    let exists = find_by_tid(id).is_some() || !group_members(id).is_empty();
    let target = match owner.kind {
        _ if owner.pid == 0 => Target::Nobody,
        _ if !exists => return Err(Errno::ESRCH),
        OWNER_THREAD => find_thread(id).map_or(Target::Nobody, Target::Thread),
        OWNER_PROCESS => find_process(id).map_or(Target::Nobody, Target::Process),
        _ => Target::Group(id),
    };
    let thread = current();
    let who = thread.subject();
    let uids = [who.uid, who.euid];
    let fence = signal_fence(who.domain.as_deref());
    let setter = Arc::downgrade(&thread.process);
    change(file, |settings| {
        settings.setter = setter;
        settings.is_owned = id != 0;
        (settings.kind, settings.id, settings.target) = (owner.kind, owner.pid, target);
        (settings.uids, settings.fence) = (uids, fence);
    })
}

/// F_GETOWNER_UIDS: real and effective user of who has set the owner.
pub fn owner_uids(file: &File) -> [u32; 2] {
    known(file).uids
}

/// F_GETOWN_EX.
pub fn owner(file: &File) -> OwnerEx {
    let settings = known(file);
    OwnerEx { kind: settings.kind, pid: settings.living_id() }
}

/// F_GETOWN: groups are negative.
pub fn owner_number(file: &File) -> i32 {
    let owner = owner(file);
    if owner.kind == OWNER_GROUP { -owner.pid } else { owner.pid }
}

/// F_SETSIG: the signal instead of SIGIO; 0: SIGIO. EINVAL.
pub fn set_signal(file: &Arc<File>, signal: u64) -> Result<()> {
    if signal > SIGNALS {
        return Err(Errno::EINVAL);
    }
    change(file, |settings| settings.signal = signal as u32)
}

/// F_GETSIG.
pub fn signal(file: &File) -> u32 {
    known(file).signal
}

/// F_NOTIFY: signals about what happens in a directory, to who asks if nobody owns its signals.
/// ENOTDIR, ENOSPC.
pub fn watch_directory(fd: u32, file: &Arc<File>, wanted: u32) -> Result<()> {
    let again = wanted & raw::DN_MULTISHOT != 0;
    if wanted & !raw::DN_MULTISHOT == 0 {
        inotify::end_signals(file);
        return Ok(());
    }
    if file.inode().file_type() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    let mask = inotify::signalled_events(wanted);
    if let Some(location) = &file.location {
        path_notify((location, mask))?;
    }
    change(file, |settings| settings.own_by_default(fd))?;
    let holder: Arc<dyn Holder> = notifier(file);
    inotify::signal(file, mask, again, Arc::downgrade(&holder))
}

/// F_GETLEASE.
pub fn lease(file: &File) -> u32 {
    match leases::get(file) {
        LeaseKind::None => raw::F_UNLCK,
        LeaseKind::Read => raw::F_RDLCK,
        LeaseKind::Write => raw::F_WRLCK,
    }
}

/// F_SETLEASE. EINVAL, EACCES, EAGAIN.
pub fn set_lease(fd: u32, file: &Arc<File>, kind: u32) -> Result<()> {
    let kind = match kind {
        raw::F_UNLCK => LeaseKind::None,
        raw::F_RDLCK => LeaseKind::Read,
        raw::F_WRLCK => LeaseKind::Write,
        _ => return Err(Errno::EINVAL),
    };
    let who = current().subject();
    let metadata = file.inode().metadata()?;
    if metadata.uid != who.fsuid && !who.capable(Capability::Lease) {
        return Err(Errno::EACCES);
    }
    if !leases::has_leases(&*file.inode()) {
        return Err(Errno::EINVAL);
    }
    if kind == LeaseKind::None {
        leases::remove(file)?;
        file.set_flags(file.flags() & !raw::FASYNC);
        // What it was told by goes with the lease.
        return change(file, |settings| *settings = Settings::default());
    }
    let pid = current().process.pid;
    leases::set(file, pid, kind, notifier(file), &uncounted_readers)?;
    file.set_flags(file.flags() | raw::FASYNC);
    change(file, |settings| settings.own_by_default(fd))
}

/// Open files of any process that only read the object, and are not counted there.
fn uncounted_readers(inode: &Arc<dyn Inode>) -> usize {
    let mut found = BTreeSet::new();
    for process in all_processes() {
        let files = process.files();
        let of_it = files
            .list()
            .into_iter()
            .filter_map(|fd| files.get(fd).ok())
            .filter(|file| file.is_uncounted_reader() && Arc::ptr_eq(&file.inode(), inode));
        found.extend(of_it.map(|file| file.id));
    }
    found.len()
}
