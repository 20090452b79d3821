//! pic
