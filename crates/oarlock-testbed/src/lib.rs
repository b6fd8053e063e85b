//! oarlock-testbed
