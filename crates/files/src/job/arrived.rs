//! Objects that were carried to one directory of a remote destination, until their names are checked.

/// The objects by name, and the number still outstanding.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// Names, each followed by a slash: there may be millions.
    names: Vec<u8>,
    sizes: Vec<u64>,
    pub(super) under_way: usize,
    /// Whether something outside a tree was carried here: more may follow until the end of the job.
    pub(super) alone: bool,
    /// Whether something of a tree was carried here.
    pub(super) of_tree: bool,
}

impl Arrived {
    /// Records an object and its size.
    pub(super) fn add(&mut self, name: &[u8], size: u64) {
        self.names.extend(name);
        self.names.push(b'/');
        self.sizes.push(size);
    }

    /// The names and sizes.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.names.split(|&byte| byte == b'/').zip(self.sizes.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }
}
