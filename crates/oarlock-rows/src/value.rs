//! Values for the clients that have no type of their own for any value: sqlx and diesel.

/// A value to send.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number; a smaller column takes it, if it fits.
    Integer(i64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// Bytes.
    Bytes(Vec<u8>),
}

macro_rules! from {
    ($($type:ty => $value:ident),*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$value(value.into())
            }
        })*
    };
}

from!(String => Text, &str => Text, i64 => Integer, i32 => Integer, u32 => Integer, f64 => Float, bool => Bool);
from!(Vec<u8> => Bytes);
