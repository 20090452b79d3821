//! Who the program runs as: names and numbers of `--user` and of images, by a tree's own
//! `/etc/passwd` and `/etc/group` (passwd(5), group(5)).
//!
//! Neighbours: `run/plan` asks, with the texts of the tree that the guest sees.

use crate::Error;

/// A user in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Home directory, where there is a line for the user.
    pub(crate) home: Option<String>,
}

/// Who there is in a tree: its `/etc/passwd` and `/etc/group`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) passwd: String,
    pub(crate) group: String,
}

impl Names {
    /// Who `--user` names, or an error that says so.
    pub(crate) fn resolve(&self, name: &str) -> Result<User, Error> {
        // What an image leaves empty is root; on a command line it is a variable that is not set.
        if name.is_empty() || name.starts_with(':') || name.ends_with(':') {
            let text = format!("--user {name:?}: want NAME, UID or either with :GROUP");
            return Err(crate::usage(text));
        }
        let found = resolve(name, &self.passwd, &self.group);
        found.map_err(|error| crate::usage(format!("--user {name}: {error}")))
    }
}

/// A line of passwd(5), as far as it matters.
struct Line<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn lines(passwd: &str) -> impl Iterator<Item = Line<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Line { name, uid, gid, home: fields.nth(1)? })
    })
}

/// The lines of group(5): name, number, members.
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((name, fields.nth(1)?.parse().ok()?, fields.next().unwrap_or_default()))
    })
}

/// `USER[:GROUP]`, each a name or a number; empty: root. A number needs no line anywhere; its
/// group is its line's, else 0.
pub(crate) fn resolve(text: &str, passwd: &str, group: &str) -> Result<User, Error> {
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number: Option<u32> = user.parse().ok();
    let is_it = |line: &Line<'_>| line.name == user || Some(line.uid) == number;
    let line = lines(passwd).find(is_it);
    let found = match (&line, number) {
        (Some(line), _) => {
            User { uid: line.uid, gid: line.gid, groups: vec![], home: Some(line.home.to_owned()) }
        }
        // (uid_t) -1 is nobody's: calls take it for "leave it as it is" (setreuid(2)).
        (None, Some(u32::MAX)) => {
            return Err(crate::usage(format!("{user} is no user's number")));
        }
        (None, Some(uid)) => User { uid, ..User::default() },
        (None, None) => {
            return Err(crate::usage(format!("no user {user} in the guest's /etc/passwd")));
        }
    };
    if let Some(wanted) = wanted_group {
        let named = groups(group).find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid);
        let number = || wanted.parse().ok().filter(|gid| *gid != u32::MAX);
        let gid = named.or_else(number);
        let missing = || crate::usage(format!("no group {wanted} in the guest's /etc/group"));
        return Ok(User { gid: gid.ok_or_else(missing)?, ..found });
    }
    let name = line.map_or("", |line| line.name);
    let is_member = |members: &str| !name.is_empty() && members.split(',').any(|m| m == name);
    let of = groups(group).filter(|(.., members)| is_member(members)).map(|(_, gid, _)| gid);
    Ok(User { groups: of.collect(), ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:w:/srv:/bin/sh\nbad line\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\ndata:x:50:alice,web\n";

    #[test]
    fn names_and_numbers() {
        let of = |text| resolve(text, PASSWD, GROUP);
        let web = User { uid: 33, gid: 34, groups: vec![50], home: Some("/srv".into()) };
        assert_eq!(of("web").expect("known"), web);
        assert_eq!(of("33").expect("known"), web);
        let plain = User { groups: vec![], gid: 50, ..web };
        assert_eq!(of("web:data").expect("known"), plain);
        assert_eq!(of("7:9").expect("numbers"), User { uid: 7, gid: 9, ..User::default() });
        assert_eq!(of("").expect("root").home.as_deref(), Some("/root"));
        assert!(of("nobody").is_err() && of("web:none").is_err() && of("-1").is_err());
    }
}
