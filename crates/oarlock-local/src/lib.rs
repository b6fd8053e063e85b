//! oarlock-local
