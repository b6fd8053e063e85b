//! oarlock
