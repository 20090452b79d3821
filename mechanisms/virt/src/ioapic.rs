//! ioapic
