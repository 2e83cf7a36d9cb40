//! What came to one directory of a far destination, until its names are looked at.

/// It, by name, and what is still to come.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// Each with a slash behind it: there may be millions.
    names: Vec<u8>,
    sizes: Vec<u64>,
    pub(super) under_way: usize,
    /// Whether something came that is no part of a tree: more of that may come until the end of the job.
    pub(super) alone: bool,
    /// Whether something came that is.
    pub(super) of_tree: bool,
}

impl Arrived {
    /// Notes what came by this name, with so many bytes.
    pub(super) fn add(&mut self, name: &[u8], size: u64) {
        self.names.extend(name);
        self.names.push(b'/');
        self.sizes.push(size);
    }

    /// The names, with the sizes of what has them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.names.split(|&byte| byte == b'/').zip(self.sizes.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }
}
