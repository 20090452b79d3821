//! Landlock's rules: what a program may do that has restricted itself (landlock(7)).
//!
//! A ruleset says which rights it handles, and where they are granted; a domain is a stack of
//! rulesets, each of which must grant what it handles. A right is granted for an object if a rule
//! stands at it or at any directory above it. Nothing here knows objects: the caller walks upwards
//! and hands in identities.
//!
//! Neighbours: the kernel's system calls make rulesets, its hooks ask domains.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// The version of the interface whose every right is known here.
pub const ABI: u32 = 7;
/// What was wrong in earlier versions of the interface, elsewhere, and is right here: what is no
/// TCP socket is not taken for one, the threads of a process may signal each other, and what was
/// moved out of a bind mount has what is granted on both ways up. One bit for each.
pub const ERRATA: u32 = 1 | 1 << 1 | 1 << 2;
/// Most rulesets on top of each other.
pub const LAYERS_MAX: usize = 16;
/// Most rules of a ruleset.
pub const RULES_MAX: usize = 1 << 16;

/// Rights to files and directories.
pub mod fs {
    /// Run a file.
    pub const EXECUTE: u64 = 1;
    /// Open a file for writing.
    pub const WRITE_FILE: u64 = 1 << 1;
    /// Open a file for reading.
    pub const READ_FILE: u64 = 1 << 2;
    /// Open a directory.
    pub const READ_DIR: u64 = 1 << 3;
    /// Remove an empty directory, or rename one.
    pub const REMOVE_DIR: u64 = 1 << 4;
    /// Unlink or rename anything else.
    pub const REMOVE_FILE: u64 = 1 << 5;
    /// Make a character device.
    pub const MAKE_CHAR: u64 = 1 << 6;
    /// Make a directory.
    pub const MAKE_DIR: u64 = 1 << 7;
    /// Make a regular file.
    pub const MAKE_REG: u64 = 1 << 8;
    /// Make a socket.
    pub const MAKE_SOCK: u64 = 1 << 9;
    /// Make a FIFO.
    pub const MAKE_FIFO: u64 = 1 << 10;
    /// Make a block device.
    pub const MAKE_BLOCK: u64 = 1 << 11;
    /// Make a symbolic link.
    pub const MAKE_SYM: u64 = 1 << 12;
    /// Link or rename between directories.
    pub const REFER: u64 = 1 << 13;
    /// Change a file's size.
    pub const TRUNCATE: u64 = 1 << 14;
    /// ioctl(2) of a device.
    pub const IOCTL_DEV: u64 = 1 << 15;
    /// All of them.
    pub const ALL: u64 = (1 << 16) - 1;
    /// Those that a file can have which is no directory.
    pub const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
}

/// Rights to the network.
pub mod net {
    /// Bind a TCP socket to a port.
    pub const BIND_TCP: u64 = 1;
    /// Connect a TCP socket to a port.
    pub const CONNECT_TCP: u64 = 1 << 1;
    /// All of them.
    pub const ALL: u64 = (1 << 2) - 1;
}

/// What stays within a domain and those made from it, if a ruleset says so.
pub mod scope {
    /// Connecting and sending to sockets with an abstract name (unix(7)).
    pub const ABSTRACT_UNIX_SOCKET: u64 = 1;
    /// Signals.
    pub const SIGNAL: u64 = 1 << 1;
    /// All of them.
    pub const ALL: u64 = (1 << 2) - 1;
}

/// What an object is known by, as long as a ruleset holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId(pub u64, pub u64);

/// Why a rule was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdded {
    /// It grants nothing.
    Nothing,
    /// It grants what the ruleset does not handle.
    NotHandled,
    /// There are [`RULES_MAX`] rules already.
    TooMany,
    /// No memory.
    Memory,
}

/// Keys with rights, ascending.
#[derive(Debug)]
struct Rules<K>(Vec<(K, u64)>);

impl<K: Ord + Copy> Rules<K> {
    /// Grants more; whether the key is new.
    fn add(&mut self, key: K, rights: u64) -> Result<bool, NotAdded> {
        match self.0.binary_search_by_key(&key, |&(key, _)| key) {
            Ok(at) => {
                if let Some((_, granted)) = self.0.get_mut(at) {
                    *granted |= rights;
                }
                Ok(false)
            }
            Err(_) if self.0.len() >= RULES_MAX => Err(NotAdded::TooMany),
            Err(at) => {
                self.0.try_reserve(1).map_err(|_| NotAdded::Memory)?;
                self.0.insert(at, (key, rights));
                Ok(true)
            }
        }
    }

    fn try_clone(&self) -> Result<Self, NotAdded> {
        let mut rules = Vec::new();
        rules.try_reserve(self.0.len() + 1).map_err(|_| NotAdded::Memory)?;
        rules.extend_from_slice(&self.0);
        Ok(Self(rules))
    }

    fn get(&self, key: K) -> u64 {
        let at = self.0.binary_search_by_key(&key, |&(key, _)| key);
        at.ok().and_then(|at| self.0.get(at)).map_or(0, |&(_, rights)| rights)
    }
}

/// What one call of landlock_restrict_self(2) adds. `P` keeps the objects that rules name, so that
/// no identity is used again.
#[derive(Debug)]
pub struct Ruleset<P> {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
    objects: Rules<ObjectId>,
    ports: Rules<u16>,
    pins: Vec<P>,
}

impl<P> Ruleset<P> {
    /// One that handles these rights, and grants none; what is `scoped` ([`scope`]) stays within
    /// the domain.
    #[must_use]
    pub const fn new(handled_fs: u64, handled_net: u64, scoped: u64) -> Self {
        Self {
            handled_fs,
            handled_net,
            scoped,
            objects: Rules(Vec::new()),
            ports: Rules(Vec::new()),
            pins: Vec::new(),
        }
    }

    /// Grants rights at an object and everything below it.
    ///
    /// # Errors
    /// [`NotAdded`].
    pub fn add_object(&mut self, object: ObjectId, rights: u64, pin: P) -> Result<(), NotAdded> {
        grants(rights, self.handled_fs)?;
        self.pins.try_reserve(1).map_err(|_| NotAdded::Memory)?;
        if self.objects.add(object, rights)? {
            self.pins.push(pin);
        }
        Ok(())
    }

    /// Grants rights at a TCP port.
    ///
    /// # Errors
    /// [`NotAdded`].
    pub fn add_port(&mut self, port: u16, rights: u64) -> Result<(), NotAdded> {
        grants(rights, self.handled_net)?;
        self.ports.add(port, rights).map(|_| ())
    }

    /// The rights to files and to ports that it handles.
    #[must_use]
    pub const fn handled(&self) -> (u64, u64) {
        (self.handled_fs, self.handled_net)
    }

    /// The same rules, to be added to.
    ///
    /// # Errors
    /// [`NotAdded::Memory`].
    pub fn try_clone(&self) -> Result<Self, NotAdded>
    where
        P: Clone,
    {
        let mut pins = Vec::new();
        pins.try_reserve(self.pins.len() + 1).map_err(|_| NotAdded::Memory)?;
        pins.extend(self.pins.iter().cloned());
        let (objects, ports) = (self.objects.try_clone()?, self.ports.try_clone()?);
        Ok(Self {
            objects,
            ports,
            pins,
            ..Self::new(self.handled_fs, self.handled_net, self.scoped)
        })
    }

    /// What it has a say about. Moves between directories are refused by every ruleset that does
    /// not grant them, handled or not.
    const fn handles(&self) -> u64 {
        if self.handled_fs == 0 { 0 } else { self.handled_fs | fs::REFER }
    }
}

/// Whether a rule may grant `rights`: some, and all of them handled.
///
/// # Errors
/// [`NotAdded::Nothing`], [`NotAdded::NotHandled`].
pub const fn grants(rights: u64, handled: u64) -> Result<(), NotAdded> {
    match rights {
        0 => Err(NotAdded::Nothing),
        _ if rights & !handled != 0 => Err(NotAdded::NotHandled),
        _ => Ok(()),
    }
}

/// What a domain is known by: no other ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(pub u64);

/// A stack of rulesets, as it was when the last was added.
#[derive(Debug)]
pub struct Domain<P> {
    id: DomainId,
    layers: Vec<Arc<Ruleset<P>>>,
    parent: Option<Arc<Domain<P>>>,
}

/// Why a program was not restricted further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRestricted {
    /// [`LAYERS_MAX`] rulesets are there already.
    TooMany,
    /// No memory.
    Memory,
}

/// Rights that each layer of a domain has granted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted([u64; LAYERS_MAX]);

impl<P> Domain<P> {
    /// `parent` with one more ruleset, known as `id`.
    ///
    /// # Errors
    /// [`NotRestricted`].
    pub fn new(
        parent: Option<Arc<Domain<P>>>,
        ruleset: Arc<Ruleset<P>>,
        id: DomainId,
    ) -> Result<Self, NotRestricted> {
        let below = parent.as_ref().map_or(&[][..], |parent| &parent.layers);
        if below.len() >= LAYERS_MAX {
            return Err(NotRestricted::TooMany);
        }
        let mut layers = Vec::new();
        layers.try_reserve_exact(below.len() + 1).map_err(|_| NotRestricted::Memory)?;
        layers.extend(below.iter().cloned());
        layers.push(ruleset);
        Ok(Self { id, layers, parent })
    }

    /// Whether any layer handles rights to files.
    #[must_use]
    pub fn handles_files(&self) -> bool {
        self.layers.iter().any(|layer| layer.handled_fs != 0)
    }

    /// Whether any layer handles one of these rights to files.
    #[must_use]
    pub fn handles(&self, rights: u64) -> bool {
        self.layers.iter().any(|layer| layer.handles() & rights != 0)
    }

    /// Whether any layer handles this right to ports.
    #[must_use]
    pub fn handles_ports(&self, right: u64) -> bool {
        self.layers.iter().any(|layer| layer.handled_net & right != 0)
    }

    /// What is granted before the walk: whatever a layer does not handle.
    #[must_use]
    pub fn start(&self) -> Granted {
        let mut granted = Granted([u64::MAX; LAYERS_MAX]);
        for (slot, layer) in granted.0.iter_mut().zip(&self.layers) {
            *slot = !layer.handles();
        }
        granted
    }

    /// Adds what the layers grant at an object.
    pub fn visit(&self, granted: &mut Granted, object: ObjectId) {
        for (slot, layer) in granted.0.iter_mut().zip(&self.layers) {
            *slot |= layer.objects.get(object);
        }
    }

    /// Whether every layer grants one of these rights for this port.
    #[must_use]
    pub fn allows_port(&self, port: u16, right: u64) -> bool {
        self.layers.iter().all(|layer| right & layer.handled_net & !layer.ports.get(port) == 0)
    }

    /// Itself, then what it was made from, and so on.
    fn line(&self) -> impl Iterator<Item = &Self> {
        // A domain has one layer more than its parent.
        core::iter::successors(Some(self), |domain| domain.parent.as_deref()).take(LAYERS_MAX)
    }

    /// Whether it is `other`, or `other` was made from it: then it restricts no more.
    #[must_use]
    pub fn is_ancestor_of(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| other.line().any(|domain| domain.id == self.id))
    }

    /// The domains that what is scoped here may not leave.
    #[must_use]
    pub fn fence(&self, scope: u64) -> Fence {
        let mut fence = Fence::open();
        let own = |domain: &&Self| domain.layers.last().is_some_and(|own| own.scoped & scope != 0);
        for (place, domain) in fence.domains.iter_mut().zip(self.line().filter(own)) {
            *place = domain.id;
            fence.len += 1;
        }
        fence
    }
}

/// Domains that somebody may not leave: what he reaches belongs to each of them. It keeps none of
/// them alive.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    domains: [DomainId; LAYERS_MAX],
    len: usize,
}

impl Default for Fence {
    fn default() -> Self {
        Self::open()
    }
}

impl Fence {
    /// Of who may go anywhere.
    #[must_use]
    pub const fn open() -> Self {
        Self { domains: [DomainId(0); LAYERS_MAX], len: 0 }
    }

    /// Whether there is nothing that may not be left.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.len == 0
    }

    /// Whether somebody in this domain is inside.
    #[must_use]
    pub fn holds<P>(&self, target: Option<&Domain<P>>) -> bool {
        let inside =
            |id: &DomainId| target.is_some_and(|target| target.line().any(|of| of.id == *id));
        self.domains.iter().take(self.len).all(inside)
    }
}

impl Granted {
    /// The rights that all layers have granted.
    #[must_use]
    pub fn by_all(&self) -> u64 {
        self.0.iter().fold(u64::MAX, |all, granted| all & granted)
    }

    /// Whether whoever is moved from here to `there` could do more there than here, by what the
    /// directories grant; `own` is what the object itself is granted.
    fn grows(&self, there: &Granted, own: &Granted, is_directory: bool) -> bool {
        let scope = if is_directory { fs::ALL } else { fs::OF_FILES };
        let pairs = self.0.iter().zip(&there.0).zip(&own.0);
        pairs.into_iter().any(|((here, there), own)| there & !(here | own) & scope != 0)
    }
}

/// An object that changes directories, as far as its rights are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// What is granted at the object itself.
    pub own: Granted,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// How a move between directories is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// EACCES: names may not be made or removed there.
    Access,
    /// EXDEV: it could be copied, but not moved.
    CrossDevice,
}

/// Whether an object may get another directory: `from` and `to` are what is granted there,
/// `wanted` the rights to make and remove names that the change needs in each. `back` is what
/// comes the other way (RENAME_EXCHANGE).
///
/// # Errors
/// [`Refused`].
pub fn check_move(
    from: &Granted,
    to: &Granted,
    wanted: (u64, u64),
    moved: &Moved,
    back: Option<&Moved>,
) -> Result<(), Refused> {
    let missing = (wanted.0 & !from.by_all()) | (wanted.1 & !to.by_all());
    if missing != 0 {
        return Err(Refused::Access);
    }
    let may_refer = from.by_all() & to.by_all() & fs::REFER != 0;
    let grows = from.grows(to, &moved.own, moved.is_directory)
        || back.is_some_and(|back| to.grows(from, &back.own, back.is_directory));
    if may_refer && !grows { Ok(()) } else { Err(Refused::CrossDevice) }
}
