//! oarlock-core
