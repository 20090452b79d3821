//! All states that a case can reach, and the invariants in each (README, I1 to I4).

use std::collections::HashSet;

use context_tracking::state::{IN_KERNEL, PENDING};

use crate::programs::{self, Role, Rules};
use crate::world::{Frame, FrameKind, Mode, Op, Place, World};

/// More states than any case has; a bound against a mistake in the search.
const STATES_MAX: usize = 20_000_000;

#[derive(Debug)]
pub(crate) enum Verdict {
    /// Every state is as it must be; how many there were.
    Holds(usize),
    /// A state that must not be, and the way there.
    Broken { why: String, steps: Vec<Step> },
}

/// One step of the search.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Run(usize, Op),
    Return(usize),
    Drain(usize),
    Fill(usize, usize),
    Interrupt(usize),
    Nmi(usize),
}

struct Search<'a> {
    roles: &'a [Role],
    rules: Rules,
    drains: bool,
}

/// Goes through every state of the case. `drains`: an atomic operation empties the store buffer.
pub(crate) fn explore(roles: &[Role], nmis: u8, rules: Rules, drains: bool) -> Verdict {
    let search = Search { roles, rules, drains };
    let in_user: Vec<bool> = roles.iter().map(|role| matches!(role, Role::Target(_))).collect();
    let mut first = World::new(&in_user, nmis);
    for (cpu, role) in first.cpus.iter_mut().zip(roles) {
        cpu.nmis = if *role == Role::Sender { 0 } else { nmis };
    }
    let mut seen = HashSet::from([first.clone()]);
    // The way to each state that is being looked at: a stack of (state, steps not yet taken).
    let mut path: Vec<Step> = vec![];
    let mut stack = vec![(search.steps(&first), first)];
    while let Some((steps, world)) = stack.last_mut() {
        let Some(step) = steps.pop() else {
            stack.pop();
            path.pop();
            continue;
        };
        path.push(step);
        let next = match search.take(world, step) {
            Ok(next) => next,
            Err(why) => return Verdict::Broken { why, steps: path },
        };
        if !seen.insert(next.clone()) {
            path.pop();
            continue;
        }
        assert!(seen.len() < STATES_MAX, "the search does not end");
        let steps = search.steps(&next);
        let has_more = |cpu| matches!(search.next_op(&next, cpu), Some(Some(_)));
        if steps.is_empty() && (0..roles.len()).any(has_more) {
            return Verdict::Broken { why: "everybody waits".into(), steps: path };
        }
        stack.push((steps, next));
    }
    Verdict::Holds(seen.len())
}

impl Search<'_> {
    fn next_op(&self, world: &World, cpu: usize) -> Option<Option<Op>> {
        let frame = world.cpus[cpu].frames.last()?;
        let (role, cpus) = (self.roles[cpu], self.roles.len());
        Some(programs::next(role, frame.kind, cpu, cpus, &frame.log, self.rules))
    }

    /// What may happen next.
    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = vec![];
        for (cpu, state) in world.cpus.iter().enumerate() {
            let op = self.next_op(world, cpu);
            match op {
                Some(Some(Op::Wait(whom))) if world.acknowledged[cpu] & whom != whom => {}
                Some(Some(op)) => steps.push(Step::Run(cpu, op)),
                Some(None) if state.frames.len() > 1 => steps.push(Step::Return(cpu)),
                // The thread has nothing left to do; interrupts still come.
                Some(None) | None => {}
            }
            if !state.buffer.is_empty() {
                steps.push(Step::Drain(cpu));
            }
            for sender in 0..self.roles.len() {
                // Only an old translation can do harm later.
                let can_fill = self.roles[sender] == Role::Sender && sender != cpu;
                if can_fill && state.tlb[sender].is_none() && world.entries[sender] == 0 {
                    steps.push(Step::Fill(cpu, sender));
                }
            }
            let mode = world.mode(cpu);
            if state.asked != 0 && matches!(mode, Mode::User | Mode::Kernel) {
                steps.push(Step::Interrupt(cpu));
            }
            let in_nmi = state.frames.iter().any(|frame| frame.kind == FrameKind::Nmi);
            // Around a guest even NMIs are held back (GIF=0).
            let is_held_back = mode == Mode::Zone && matches!(self.roles[cpu], Role::Guest(_));
            if state.nmis > 0 && !in_nmi && mode != Mode::User && !is_held_back {
                steps.push(Step::Nmi(cpu));
            }
        }
        steps
    }

    fn take(&self, world: &World, step: Step) -> Result<World, String> {
        let mut next = world.clone();
        match step {
            Step::Run(cpu, op) => self.run(&mut next, cpu, op)?,
            Step::Return(cpu) => _ = next.cpus[cpu].frames.pop(),
            Step::Drain(cpu) => next.drain_one(cpu),
            Step::Fill(cpu, sender) => next.fill(cpu, sender),
            Step::Interrupt(cpu) => {
                let from_user = next.mode(cpu) == Mode::User;
                let (kind, mode) = if from_user {
                    (FrameKind::InterruptOfUser, Mode::Zone)
                } else {
                    (FrameKind::InterruptOfKernel, Mode::Handler)
                };
                next.cpus[cpu].user_cr3 = false;
                next.cpus[cpu].frames.push(Frame { kind, log: vec![], mode });
            }
            Step::Nmi(cpu) => {
                next.cpus[cpu].nmis -= 1;
                let frame = Frame { kind: FrameKind::Nmi, log: vec![], mode: Mode::Zone };
                next.cpus[cpu].frames.push(frame);
            }
        }
        check(&next)?;
        Ok(next)
    }

    fn run(&self, world: &mut World, cpu: usize, op: Op) -> Result<(), String> {
        let result = self.execute(world, cpu, op)?;
        if let Some(frame) = world.cpus[cpu].frames.last_mut() {
            frame.log.push(result);
            if let Op::Mark(mode) = op {
                frame.mode = mode;
                world.cpus[cpu].user_cr3 = mode == Mode::User;
            }
        }
        Ok(())
    }

    fn execute(&self, world: &mut World, cpu: usize, op: Op) -> Result<u32, String> {
        let mut atomic = |whose: usize, change: &dyn Fn(u32) -> u32| {
            world.before_atomic(cpu, Place::Word(whose), self.drains);
            let old = world.words[whose];
            world.words[whose] = change(old);
            old
        };
        Ok(match op {
            Op::Load(whose) => world.read(cpu, Place::Word(whose)),
            Op::CompareExchange(whose, old, new) => {
                atomic(whose, &|seen| if seen == old { new } else { seen })
            }
            Op::Or(whose, bits) => atomic(whose, &|seen| seen | bits),
            Op::And(whose, bits) => atomic(whose, &|seen| seen & bits),
            Op::Store(place, value) => {
                world.cpus[cpu].buffer.push((place, value));
                0
            }
            Op::Barrier => {
                world.drain(cpu);
                0
            }
            Op::Send(target) => {
                world.cpus[target].asked |= 1 << cpu;
                0
            }
            Op::Flush => {
                world.flush(cpu);
                0
            }
            Op::Use => return use_all(world, cpu),
            Op::Take => std::mem::take(&mut world.cpus[cpu].asked),
            Op::Acknowledge(senders) => {
                let senders = (0..self.roles.len()).filter(|sender| senders & 1 << sender != 0);
                senders.for_each(|sender| world.acknowledged[sender] |= 1 << cpu);
                0
            }
            Op::Done => {
                // What the sender does with the address next may well be a locked operation.
                world.drain(cpu);
                world.done |= 1 << cpu;
                return self.at_done(world, cpu);
            }
            Op::ReadCr3 => u32::from(!world.cpus[cpu].user_cr3),
            Op::Mark(_) | Op::Wait(_) => 0,
        })
    }

    /// I3, when the sender's request returns. Where no notes are left the word says it: [`use_all`]
    /// judges what comes of it.
    fn at_done(&self, world: &World, sender: usize) -> Result<u32, String> {
        if self.rules.by_cr3 {
            return Ok(0);
        }
        for (target, state) in world.cpus.iter().enumerate() {
            let word = world.words[target];
            let told = state.fresh & 1 << sender != 0 || word & PENDING != 0;
            if target != sender && !told {
                return Err(format!("I3: CPU {target} was neither told nor left a note"));
            }
        }
        Ok(0)
    }
}

/// The kernel's own accesses, through the TLB; what is not there is walked for. And I1.
fn use_all(world: &mut World, cpu: usize) -> Result<u32, String> {
    for sender in 0..world.cpus.len() {
        let value = world.cpus[cpu].tlb[sender].unwrap_or(world.entries[sender]);
        if value == 0 && world.done & 1 << sender != 0 {
            return Err(format!("CPU {cpu} uses what CPU {sender} has taken away"));
        }
        if value == 0 {
            world.fill(cpu, sender);
        }
    }
    if world.words[cpu] & PENDING != 0 && world.mode(cpu) == Mode::Kernel {
        return Err(format!("I1: CPU {cpu} goes on with work pending"));
    }
    Ok(0)
}

/// I2 and I4, in every state.
fn check(world: &World) -> Result<(), String> {
    for (cpu, state) in world.cpus.iter().enumerate() {
        let in_kernel = world.words[cpu] & IN_KERNEL != 0;
        match world.mode(cpu) {
            Mode::Kernel | Mode::Handler if !in_kernel => {
                return Err(format!("I2: CPU {cpu} is in the kernel, its word says user"));
            }
            Mode::User if in_kernel && state.buffer.is_empty() => {
                return Err(format!("I4: CPU {cpu} is in user mode, its word says kernel"));
            }
            _ => {}
        }
    }
    Ok(())
}
