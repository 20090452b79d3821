//! From events to who has each CPU when, and to what each thread asked for and got.
//!
//! Why it is hard: events are of CPUs, but calls are of threads. A thread that waits in a call
//! leaves the CPU to another one and comes back on a third; an interrupt in the kernel nests in
//! whatever ran. So each thread has a stack of what it is in, and a CPU's time belongs to the top
//! of the stack of the thread that it runs. What began before the ring's first event has no name.
//!
//! Neighbours: `perfetto.rs` writes it; `machine/src/cpu/record.rs` in the kernel records.

use std::collections::BTreeMap;

use formats::control::{Phase, TraceEvent};

/// Who has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VisitKind {
    User,
    Call,
    Exception,
    Interrupt,
    /// The kernel on behalf of a thread that was in it before the trace, or of none.
    Kernel,
    Idle,
}

impl VisitKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Call => "call",
            Self::Exception => "exception",
            Self::Interrupt => "interrupt",
            Self::Kernel => "kernel",
            Self::Idle => "idle",
        }
    }
}

/// A time on a CPU without a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    pub(super) cpu: u8,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) kind: VisitKind,
    pub(super) name: String,
    /// The thread, if it is known.
    pub(super) thread: Option<u64>,
}

/// A call, exception or interrupt of a thread, from its entry to its exit, waiting included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) thread: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) kind: VisitKind,
    pub(super) name: String,
    /// Of a call: the registers of its arguments.
    pub(super) arguments: Vec<u64>,
    /// Of a call that has come back.
    pub(super) result: Option<u64>,
}

/// Something at one moment: an interrupt sent or spared, a catch-up, a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) cpu: u8,
    pub(super) at_ns: u64,
    pub(super) name: String,
    pub(super) number: u64,
}

/// From an interrupt that was sent to where it was received, or from work that was deferred to
/// where it was caught up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) from: (u8, u64),
    pub(super) to: (u8, u64),
    pub(super) cause: String,
    pub(super) is_deferred: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) stays: Vec<Stay>,
    pub(super) visits: Vec<Visit>,
    pub(super) marks: Vec<Mark>,
    pub(super) flows: Vec<Flow>,
}

/// The kernel's name of each CPU's own thread, which runs when nobody else does.
const IDLE: u64 = 0;
/// Threads of programs have smaller numbers (the kernel's PID_MAX); the kernel's own are behind.
const THREADS_MAX: u64 = 4_194_304;
/// Vectors of the CPU's own exceptions (Intel SDM volume 3, 7.3); above are interrupts.
const EXCEPTIONS: u64 = 32;
/// Names of interrupts between CPUs as they are received.
const RECEIVED: [&str; 3] = ["reschedule", "tlb", "sync"];

/// What a thread is in.
#[derive(Clone, Debug)]
struct OpenVisit {
    kind: VisitKind,
    name: String,
    arguments: Vec<u64>,
    from_ns: u64,
}

#[derive(Clone, Debug)]
struct Cpu {
    /// None until the first switch tells it.
    thread: Option<u64>,
    since_ns: u64,
    /// The program runs: the last exit was the thread's outermost.
    in_user: bool,
    /// Its latest stay.
    last: Option<usize>,
}

impl Timeline {
    /// Events of each CPU are in order; those of different CPUs need not be.
    pub(super) fn of(events: &[TraceEvent]) -> Self {
        let mut sorted: Vec<&TraceEvent> = events.iter().collect();
        sorted.sort_by_key(|event| event.at_ns);
        let mut timeline = Self::default();
        let mut cpus: BTreeMap<u8, Cpu> = BTreeMap::new();
        // Of threads whose number is not known yet, by CPU.
        let mut stacks: BTreeMap<(bool, u64), Vec<OpenVisit>> = BTreeMap::new();
        for event in sorted {
            let start = Cpu { thread: None, since_ns: event.at_ns, in_user: false, last: None };
            let cpu = cpus.entry(event.cpu).or_insert(start);
            let key = key(event.cpu, cpu.thread);
            timeline.stay(event, cpu, stacks.get(&key).and_then(|stack| stack.last()));
            match event.phase {
                Phase::Begin => {
                    let entry = entry(event);
                    stacks.entry(key).or_default().push(entry);
                    cpu.in_user = false;
                }
                Phase::End => {
                    let stack = stacks.entry(key).or_default();
                    if let (Some(done), Some(thread)) = (stack.pop(), cpu.thread) {
                        timeline.visit(done, thread, event);
                    }
                    let is_programs = |thread| thread != IDLE && thread <= THREADS_MAX;
                    cpu.in_user = stack.is_empty() && cpu.thread.is_none_or(is_programs);
                }
                Phase::Instant => {
                    if event.name == "switch" {
                        cpu.thread = Some(event.number);
                        cpu.in_user = false;
                    }
                    let (cpu, at_ns, number) = (event.cpu, event.at_ns, event.number);
                    timeline.marks.push(Mark { cpu, at_ns, name: event.name.clone(), number });
                }
            }
        }
        timeline.flows = timeline.flows();
        timeline
    }

    /// What the CPU has done since its last event.
    fn stay(&mut self, event: &TraceEvent, cpu: &mut Cpu, top: Option<&OpenVisit>) {
        let from_ns = std::mem::replace(&mut cpu.since_ns, event.at_ns);
        let (kind, name) = match (top, cpu.thread) {
            _ if cpu.in_user => (VisitKind::User, "user"),
            (Some(entry), _) => (entry.kind, entry.name.as_str()),
            (None, Some(IDLE)) => (VisitKind::Idle, "idle"),
            (None, _) => (VisitKind::Kernel, "kernel"),
        };
        if from_ns < event.at_ns {
            let (to_ns, thread) = (event.at_ns, cpu.thread.filter(|thread| *thread != IDLE));
            // What goes on is one stay: marks do not cut it.
            if let Some(last) = cpu.last.and_then(|index| self.stays.get_mut(index))
                && (last.to_ns, last.kind, last.thread) == (from_ns, kind, thread)
                && last.name == name
                && event.phase == Phase::Instant
            {
                last.to_ns = to_ns;
                return;
            }
            cpu.last = Some(self.stays.len());
            let name = name.to_owned();
            self.stays.push(Stay { cpu: event.cpu, from_ns, to_ns, kind, name, thread });
        }
    }

    fn visit(&mut self, done: OpenVisit, thread: u64, end: &TraceEvent) {
        if thread != IDLE {
            let OpenVisit { kind, name, arguments, from_ns } = done;
            let (to_ns, result) = (end.at_ns, end.values.first().copied());
            let visit = Visit { thread, from_ns, to_ns, kind, name, arguments, result };
            self.visits.push(visit);
        }
    }

    /// Each interrupt sent leads to the next one that its target receives from another CPU, and
    /// work that was deferred to the target's next catch-up.
    fn flows(&self) -> Vec<Flow> {
        let received = self.stays.iter().filter(|stay| RECEIVED.contains(&stay.name.as_str()));
        let received = by_cpu(received.map(|stay| (stay.cpu, stay.from_ns)));
        let caught_up = self.marks.iter().filter(|mark| mark.name == "catch-up");
        let caught_up = by_cpu(caught_up.map(|mark| (mark.cpu, mark.at_ns)));
        let flow = |mark: &Mark| {
            let (cause, is_deferred) = match mark.name.split_once("-sent-") {
                Some((cause, _)) => (cause, false),
                None => (mark.name.split_once("-deferred-")?.0, true),
            };
            let target = u8::try_from(mark.number).ok()?;
            let times = if is_deferred { &caught_up } else { &received }.get(&target)?;
            let next = times.partition_point(|at_ns| *at_ns <= mark.at_ns);
            let (from, to) = ((mark.cpu, mark.at_ns), (target, *times.get(next)?));
            Some(Flow { from, to, cause: cause.to_owned(), is_deferred })
        };
        self.marks.iter().filter_map(flow).collect()
    }
}

/// Times of each CPU, in order.
fn by_cpu(times: impl Iterator<Item = (u8, u64)>) -> BTreeMap<u8, Vec<u64>> {
    let mut all: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    times.for_each(|(cpu, at_ns)| all.entry(cpu).or_default().push(at_ns));
    all.values_mut().for_each(|times| times.sort_unstable());
    all
}

/// Where the stack of a CPU's thread is kept.
fn key(cpu: u8, thread: Option<u64>) -> (bool, u64) {
    match thread {
        // Each CPU has an idle thread of its own.
        None | Some(IDLE) => (false, u64::from(cpu)),
        Some(thread) => (true, thread),
    }
}

fn entry(event: &TraceEvent) -> OpenVisit {
    let is_vector = is_vector(&event.name);
    let kind = match (is_vector, event.number < EXCEPTIONS) {
        (false, _) => VisitKind::Call,
        (true, true) => VisitKind::Exception,
        (true, false) => VisitKind::Interrupt,
    };
    OpenVisit {
        kind,
        name: event.name.clone(),
        arguments: event.values.clone(),
        from_ns: event.at_ns,
    }
}

/// Names that the kernel gives vectors (`machine/src/cpu/record.rs`): all others are calls.
fn is_vector(name: &str) -> bool {
    const NAMES: [&str; 13] = [
        "divide-error",
        "debug",
        "nmi",
        "breakpoint",
        "invalid-opcode",
        "general-protection",
        "page-fault",
        "timer",
        "reschedule",
        "tlb",
        "sync",
        "exception",
        "device",
    ];
    NAMES.contains(&name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::run::trace) fn event(
        cpu: u8,
        at_ns: u64,
        phase: Phase,
        name: &str,
        number: u64,
    ) -> TraceEvent {
        TraceEvent { cpu, at_ns, phase, name: name.to_owned(), number, values: vec![] }
    }

    fn kinds(timeline: &Timeline, cpu: u8) -> Vec<(VisitKind, &str, u64)> {
        let of_cpu = timeline.stays.iter().filter(|stay| stay.cpu == cpu);
        of_cpu.map(|stay| (stay.kind, stay.name.as_str(), stay.to_ns - stay.from_ns)).collect()
    }

    #[test]
    fn a_thread_that_waits_gives_its_cpu_away_and_keeps_its_call() {
        let timeline = Timeline::of(&[
            event(0, 100, Phase::Instant, "switch", 7),
            event(0, 110, Phase::End, "-", 0),
            TraceEvent { values: vec![3, 9, 1], ..event(0, 120, Phase::Begin, "read", 0) },
            event(0, 130, Phase::Instant, "switch", 0),
            event(0, 180, Phase::Begin, "timer", 253),
            event(0, 190, Phase::End, "-", 0),
            event(1, 195, Phase::Instant, "switch", 7),
            TraceEvent { values: vec![1], ..event(1, 200, Phase::End, "-", 0) },
            event(1, 230, Phase::Begin, "page-fault", 14),
        ]);
        let user = (VisitKind::User, "user", 10);
        let (call, idle) = ((VisitKind::Call, "read", 10), (VisitKind::Idle, "idle", 50));
        let timer = (VisitKind::Interrupt, "timer", 10);
        assert_eq!(
            kinds(&timeline, 0),
            [(VisitKind::Kernel, "kernel", 10), user, call, idle, timer]
        );
        assert_eq!(
            kinds(&timeline, 1),
            [(VisitKind::Call, "read", 5), (VisitKind::User, "user", 30)]
        );
        let read = Visit {
            thread: 7,
            from_ns: 120,
            to_ns: 200,
            kind: VisitKind::Call,
            name: "read".to_owned(),
            arguments: vec![3, 9, 1],
            result: Some(1),
        };
        assert_eq!(timeline.visits, [read]);
    }

    #[test]
    fn interrupts_lead_to_where_they_are_received_and_deferred_work_to_its_catch_up() {
        let timeline = Timeline::of(&[
            event(1, 1, Phase::Instant, "switch", 9),
            event(0, 5, Phase::Instant, "tlb-sent-user", 1),
            event(0, 6, Phase::Instant, "vunmap-deferred-user", 1),
            event(1, 8, Phase::Begin, "tlb", 252),
            event(1, 9, Phase::Instant, "catch-up", 0),
            event(1, 12, Phase::End, "-", 0),
        ]);
        let flow = |from, to, cause: &str, is_deferred| Flow {
            from: (0, from),
            to: (1, to),
            cause: cause.to_owned(),
            is_deferred,
        };
        assert_eq!(timeline.flows, [flow(5, 8, "tlb", false), flow(6, 9, "vunmap", true)]);
    }
}
