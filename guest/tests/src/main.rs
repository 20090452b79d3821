//! limen
fn main() {}
