use proptest::prelude::*;

use super::*;

fn arm(role: ArmRole, is_calibrated: bool) -> Planned {
    Planned {
        role,
        is_calibrated,
        is_finished: false,
    }
}

/// Native, native again, AD, AF, SF.
fn usual() -> Vec<Planned> {
    vec![
        arm(ArmRole::Control, false),
        arm(ArmRole::Aa, false),
        arm(ArmRole::Candidate, false),
        arm(ArmRole::Candidate, true),
        arm(ArmRole::Candidate, true),
    ]
}

/// Does everything on one worker.
fn alone(arms: &[Planned]) -> Vec<Job> {
    let mut schedule = Schedule::new(arms);
    let mut jobs = Vec::new();
    while let Next::Job(number, job) = schedule.next() {
        jobs.push(job);
        schedule.finish(number);
    }
    assert!(schedule.is_complete());
    jobs
}

#[test]
fn one_worker_keeps_the_order_and_calibrates_when_it_must() {
    let expected = [
        Job::Arm(0),
        Job::Arm(1),
        Job::Compare(1),
        Job::Arm(2),
        Job::Calibrate(3),
        Job::Arm(3),
        Job::Arm(4),
    ];
    assert_eq!(alone(&usual()), expected);
}

#[test]
fn a_second_worker_takes_the_a_a_arm_and_candidates_wait_for_both() {
    let mut schedule = Schedule::new(&usual());
    assert_eq!(schedule.arms_left(), 5);
    assert_eq!(schedule.next(), Next::Job(0, Job::Arm(0)));
    assert_eq!(schedule.next(), Next::Job(1, Job::Arm(1)));
    // A third one measures the scales meanwhile.
    assert_eq!(schedule.next(), Next::Job(4, Job::Calibrate(3)));
    assert_eq!(schedule.next(), Next::Wait);
    schedule.finish(4);
    schedule.finish(1);
    assert_eq!(schedule.next(), Next::Wait);
    schedule.finish(0);
    assert_eq!(schedule.next(), Next::Job(2, Job::Compare(1)));
    assert_eq!(schedule.next(), Next::Wait);
    schedule.finish(2);
    for (number, at) in [(3, 2), (5, 3), (6, 4)] {
        assert_eq!(schedule.next(), Next::Job(number, Job::Arm(at)));
    }
    assert_eq!(schedule.next(), Next::End);
    assert!(!schedule.is_complete());
}

#[test]
fn nothing_begins_after_a_stop() {
    let mut schedule = Schedule::new(&usual());
    assert_eq!(schedule.next(), Next::Job(0, Job::Arm(0)));
    schedule.stop();
    assert_eq!(schedule.next(), Next::End);
    schedule.finish(0);
    assert!(!schedule.is_complete());
}

#[test]
fn finished_arms_are_looked_at_again_and_need_no_calibration() {
    let mut arms = usual();
    for arm in &mut arms {
        arm.is_finished = true;
    }
    let jobs = alone(&arms);
    assert!(jobs.contains(&Job::Compare(1)) && jobs.contains(&Job::Arm(4)));
    assert!(!jobs.iter().any(|job| matches!(job, Job::Calibrate(_))));
    assert_eq!(Schedule::new(&arms).arms_left(), 0);
    arms[4].is_finished = false;
    assert!(alone(&arms).contains(&Job::Calibrate(4)));
    assert_eq!(Schedule::new(&arms).arms_left(), 1);
}

prop_compose! {
    fn any_arm()(role in 0usize..6, is_calibrated: bool, is_finished: bool) -> Planned {
        let role = match role {
            0 => ArmRole::Control,
            1 => ArmRole::Aa,
            _ => ArmRole::Candidate,
        };
        Planned { role, is_calibrated, is_finished }
    }
}

proptest! {
    /// Whatever the arms, the workers and the order in which jobs end: each is done once, none
    /// before what it needs, and nobody waits for ever.
    #[test]
    fn every_job_is_done_once_and_after_what_it_needs(
        arms in prop::collection::vec(any_arm(), 0..9),
        workers in 1usize..5,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let mut schedule = Schedule::new(&arms);
        let (mut running, mut done): (Vec<(usize, Job)>, Vec<Job>) = (Vec::new(), Vec::new());
        let mut picks = picks.into_iter();
        loop {
            while running.len() < workers {
                match schedule.next() {
                    Next::Job(number, job) => running.push((number, job)),
                    Next::Wait => {
                        prop_assert!(!running.is_empty(), "nothing runs that could be waited for");
                        break;
                    }
                    Next::End => break,
                }
            }
            if running.is_empty() {
                break;
            }
            let pick = picks.next().map_or(0, |pick| pick.index(running.len()));
            let (number, job) = running.remove(pick);
            if let Job::Arm(at) = job && arms[at].role == ArmRole::Candidate {
                for (other, arm) in arms.iter().enumerate() {
                    let compared = done.contains(&Job::Compare(other));
                    let ran = done.contains(&Job::Arm(other));
                    match arm.role {
                        ArmRole::Control => prop_assert!(ran),
                        ArmRole::Aa => prop_assert!(compared),
                        ArmRole::Candidate => {}
                    }
                }
                let measured = done.iter().any(|job| matches!(job, Job::Calibrate(_)));
                let needed = arms[at].is_calibrated && !arms[at].is_finished;
                prop_assert!(measured || !needed);
            }
            prop_assert!(!done.contains(&job));
            schedule.finish(number);
            done.push(job);
        }
        prop_assert!(schedule.is_complete());
        let ran = done.iter().filter(|job| matches!(job, Job::Arm(_))).count();
        prop_assert_eq!(ran, arms.len());
    }
}
