//! An 8254 interval timer, as PCs have it: channel 0 interrupts, channel 2 is what programs measure
//! time with (port 0x61) (Intel 8254 data sheet).
//!
//! Counts are not kept but computed, from the moment at which counting began.

/// Ticks in a second.
const HZ: u64 = 1_193_182;
const NS_PER_S: u64 = 1_000_000_000;
/// A periodic channel 0 interrupts no more often than this, ns.
const MIN_PERIOD_NS: u64 = 200_000;

/// One channel, in the terms of KVM's `struct kvm_pit_channel_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of linux/kvm.h")]
pub struct Channel {
    /// 1 to 65536.
    pub count: u32,
    pub latched_count: u16,
    /// 0: none; else how it is read.
    pub count_latched: u8,
    pub status_latched: u8,
    pub status: u8,
    pub read_state: u8,
    pub write_state: u8,
    pub write_latch: u8,
    pub rw_mode: u8,
    pub mode: u8,
    pub bcd: u8,
    pub gate: u8,
    /// When counting began, ns.
    pub loaded_ns: i64,
}

/// Parts of a count.
const LOW: u8 = 1;
const HIGH: u8 = 2;
const BOTH: u8 = 3;
const BOTH_SECOND: u8 = 4;

impl Channel {
    fn ticks(&self, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.loaded_ns.max(0) as u64);
        (u128::from(passed) * u128::from(HZ) / u128::from(NS_PER_S)) as u64
    }

    fn count_now(&self, now_ns: u64) -> u16 {
        let count = u64::from(self.count.max(1));
        let ticks = self.ticks(now_ns);
        (match self.mode {
            0 | 1 | 4 | 5 => count.wrapping_sub(ticks),
            3 => count - (2 * ticks) % count,
            _ => count - ticks % count,
        }) as u16
    }

    fn output(&self, now_ns: u64) -> bool {
        let count = u64::from(self.count.max(1));
        let ticks = self.ticks(now_ns);
        match self.mode {
            0 | 1 => ticks >= count,
            2 => !(ticks.is_multiple_of(count) && ticks != 0),
            3 => ticks % count < count.div_ceil(2),
            _ => ticks == count,
        }
    }

    fn load(&mut self, value: u16, now_ns: u64) {
        self.count = if value == 0 { 0x1_0000 } else { value.into() };
        self.loaded_ns = now_ns as i64;
    }

    fn latch_count(&mut self, now_ns: u64) {
        if self.count_latched == 0 {
            self.latched_count = self.count_now(now_ns);
            self.count_latched = self.rw_mode;
        }
    }

    fn latch_status(&mut self, now_ns: u64) {
        if self.status_latched == 0 {
            let output = u8::from(self.output(now_ns)) << 7;
            self.status = output | self.rw_mode << 4 | self.mode << 1 | self.bcd;
            self.status_latched = 1;
        }
    }

    fn read(&mut self, now_ns: u64) -> u8 {
        if self.status_latched != 0 {
            self.status_latched = 0;
            return self.status;
        }
        let [low, high] = self.latched_count.to_le_bytes();
        match self.count_latched {
            0 => {}
            LOW => {
                self.count_latched = 0;
                return low;
            }
            HIGH => {
                self.count_latched = 0;
                return high;
            }
            BOTH => {
                self.count_latched = BOTH_SECOND;
                return low;
            }
            _ => {
                self.count_latched = 0;
                return high;
            }
        }
        let [low, high] = self.count_now(now_ns).to_le_bytes();
        match self.read_state {
            HIGH => high,
            BOTH => {
                self.read_state = BOTH_SECOND;
                low
            }
            BOTH_SECOND => {
                self.read_state = BOTH;
                high
            }
            _ => low,
        }
    }

    /// True: counting has begun anew.
    fn write(&mut self, value: u8, now_ns: u64) -> bool {
        let count = match self.write_state {
            HIGH => u16::from(value) << 8,
            BOTH => {
                self.write_latch = value;
                self.write_state = BOTH_SECOND;
                return false;
            }
            BOTH_SECOND => {
                self.write_state = BOTH;
                u16::from(self.write_latch) | u16::from(value) << 8
            }
            _ => value.into(),
        };
        self.load(count, now_ns);
        true
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Pit {
    /// The three.
    pub channels: [Channel; 3],
    /// Port 0x61: whether the speaker sounds.
    pub speaker: u8,
}

impl Pit {
    /// As after power-on.
    #[must_use]
    pub fn new(now_ns: u64) -> Pit {
        let mut pit = Pit { channels: [Channel::default(); 3], speaker: 0 };
        for (n, channel) in pit.channels.iter_mut().enumerate() {
            (channel.mode, channel.gate) = (0xff, u8::from(n != 2));
            channel.load(0, now_ns);
        }
        pit
    }

    /// Whether a port is one of its own.
    #[must_use]
    pub const fn has_port(port: u16) -> bool {
        matches!(port, 0x40..=0x43 | 0x61)
    }

    /// Reads a port of its own.
    pub fn read(&mut self, port: u16, now_ns: u64) -> u8 {
        match port {
            0x40..=0x42 => self.channels[usize::from(port & 3)].read(now_ns),
            0x61 => {
                let second = &self.channels[2];
                // The refresh bit toggles about every 15 microseconds.
                let refresh = (now_ns >> 14 & 1) as u8;
                self.speaker << 1
                    | second.gate
                    | refresh << 4
                    | u8::from(second.output(now_ns)) << 5
            }
            _ => 0,
        }
    }

    /// Writes a port of its own. True: channel 0 counts anew.
    pub fn write(&mut self, port: u16, value: u8, now_ns: u64) -> bool {
        match port {
            0x40..=0x42 => {
                self.channels[usize::from(port & 3)].write(value, now_ns) && port == 0x40
            }
            0x43 => self.control(value, now_ns),
            _ => {
                let second = &mut self.channels[2];
                if value & 1 != 0 && second.gate == 0 && !matches!(second.mode, 0 | 4) {
                    second.loaded_ns = now_ns as i64;
                }
                second.gate = value & 1;
                self.speaker = value >> 1 & 1;
                false
            }
        }
    }

    fn control(&mut self, value: u8, now_ns: u64) -> bool {
        let number = usize::from(value >> 6);
        if number == 3 {
            for (n, channel) in self.channels.iter_mut().enumerate() {
                if value & 2 << n != 0 {
                    if value & 0x20 == 0 {
                        channel.latch_count(now_ns);
                    }
                    if value & 0x10 == 0 {
                        channel.latch_status(now_ns);
                    }
                }
            }
            return false;
        }
        let channel = &mut self.channels[number];
        let access = value >> 4 & 3;
        if access == 0 {
            channel.latch_count(now_ns);
            return false;
        }
        (channel.rw_mode, channel.read_state, channel.write_state) = (access, access, access);
        channel.mode = value >> 1 & 7;
        // Modes 6 and 7 are 2 and 3.
        if channel.mode > 5 {
            channel.mode &= 3;
        }
        channel.bcd = value & 1;
        number == 0
    }

    /// When channel 0 interrupts next, after `now_ns`. None: never again.
    #[must_use]
    pub fn deadline(&self, now_ns: u64) -> Option<u64> {
        let channel = &self.channels[0];
        let began_ns = channel.loaded_ns.max(0) as u64;
        let period_ns = (u64::from(channel.count.max(1)) * NS_PER_S).div_ceil(HZ);
        match channel.mode {
            0 | 1 | 4 | 5 => Some(began_ns + period_ns).filter(|&at| at > now_ns),
            2 | 3 => {
                let period_ns = period_ns.max(MIN_PERIOD_NS);
                let passed = now_ns.saturating_sub(began_ns) / period_ns;
                Some(began_ns + (passed + 1) * period_ns)
            }
            _ => None,
        }
    }
}
