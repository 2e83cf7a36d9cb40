//! Lists inside messages, decoded in place: each item is decoded on iteration, without allocation.

use minicbor::decode::Decoder;
use minicbor::encode::{Encoder, Write};

/// A list in a message: a slice to encode, or the validated bytes of a received list.
#[derive(Debug, Clone, Copy)]
pub struct List<'a, T>(Repr<'a, T>);

#[derive(Debug, Clone, Copy)]
enum Repr<'a, T> {
    Items(&'a [T]),
    Encoded { bytes: &'a [u8], len: usize },
}

/// What a [`List`] can hold.
pub(super) trait Item<'a>: Copy {
    fn encode<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>>;
    fn decode(d: &mut Decoder<'a>) -> Result<Self, &'static str>;
}

impl<'a, T> List<'a, T> {
    /// A list of `items`, to be encoded.
    pub const fn new(items: &'a [T]) -> Self {
        Self(Repr::Items(items))
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Items(items) => items.len(),
            Repr::Encoded { len, .. } => len,
        }
    }

    /// Whether the list has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self::new(&[])
    }
}

#[allow(private_bounds, reason = "the items a list can hold are closed: they are part of the protocol")]
impl<'a, T: Item<'a>> List<'a, T> {
    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (items, bytes, len) = match self.0 {
            Repr::Items(items) => (items, &[][..], 0),
            Repr::Encoded { bytes, len } => (&[][..], bytes, len),
        };
        let mut decoder = Decoder::new(bytes);
        // Decoding the message has decoded every item once, so that no item can fail here.
        items.iter().copied().chain((0..len).map_while(move |_| T::decode(&mut decoder).ok()))
    }

    pub(super) fn encode<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.array(self.len() as u64)?;
        self.iter().try_for_each(|item| item.encode(e))
    }

    pub(super) fn decode(d: &mut Decoder<'a>, max: usize) -> Result<Self, &'static str> {
        let len = d.array().ok().flatten().ok_or("a list was expected")?;
        let len = usize::try_from(len).ok().filter(|len| *len <= max).ok_or("a list is too long")?;
        let start = d.position();
        for _ in 0..len {
            T::decode(d)?;
        }
        let bytes = d.input().get(start..d.position()).ok_or("a list is cut short")?;
        Ok(Self(Repr::Encoded { bytes, len }))
    }
}

impl<'a, T: Item<'a> + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}
