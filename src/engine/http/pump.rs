//! Requests side by side: bounded, in order, and heard of on the thread that asked.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::{CaseError, EngineError, FailedAttempt, Observer};

use super::client::CallError;

/// How often a thread that waits for replies looks whether it should stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is heard of requests.
pub(super) enum News<T> {
    /// Nothing for a while.
    Quiet,
    /// An attempt at a request failed.
    Attempt(usize, FailedAttempt),
    /// A request has its outcome.
    Done(usize, Result<T, CallError>),
}

/// Bounds of requests side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Requests at a time.
    pub concurrency: usize,
    /// Requests that may be begun after the oldest one that has no outcome: what waits for it is
    /// bounded, however long it takes.
    pub window: usize,
}

/// Tells of failed attempts at one request.
pub(super) struct Attempts<T> {
    index: usize,
    news: Sender<News<T>>,
}

/// What was heard of attempts at one request before its outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    /// Number of the last one that failed, from 1.
    attempt: u32,
    /// It was not tried again: the outcome is its failure.
    was_last: bool,
}

impl<T> Attempts<T> {
    pub fn failed(&self, heard: &mut Heard, failure: FailedAttempt) {
        *heard = Heard {
            attempt: failure.attempt,
            was_last: failure.wait_ms.is_none(),
        };
        self.tell(failure);
    }

    /// Tells of an attempt that had a reply which cannot be used: nothing of it was heard so far.
    pub fn ended(&self, heard: Heard, outcome: &Result<T, CallError>) {
        let Err(error) = outcome else { return };
        let status = match error {
            // Nothing was sent.
            CallError::Request { status: None, .. } => return,
            CallError::Request { status, .. } => *status,
            CallError::Server(_) => Some(200),
        };
        if !heard.was_last {
            self.tell(FailedAttempt {
                attempt: heard.attempt + 1,
                status,
                error: error.what().to_owned(),
                wait_ms: None,
            });
        }
    }

    fn tell(&self, failure: FailedAttempt) {
        // Nobody listens any more where the run was stopped.
        let _ = self.news.send(News::Attempt(self.index, failure));
    }
}

/// Begins `ask` for 0 to `count - 1` in order and calls `hear` with what comes of them, in any
/// order, on this thread; requests go on meanwhile. Ends when each has its outcome, or when `hear`
/// breaks: what is under way is then dropped.
pub(super) fn run<T, F, A>(
    runtime: &Runtime,
    count: usize,
    bounds: Bounds,
    ask: A,
    hear: &mut dyn FnMut(News<T>) -> ControlFlow<()>,
) where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    A: Fn(usize, Attempts<T>) -> F + Send + 'static,
{
    let (sender, receiver) = channel();
    let window = Arc::new(Semaphore::new(bounds.window.max(bounds.concurrency).max(1)));
    let dispatcher = runtime.spawn(dispatch(
        count,
        bounds.concurrency.max(1),
        Arc::clone(&window),
        sender,
        ask,
    ));
    listen(count, &window, &receiver, hear);
    // Drops its tasks with it.
    dispatcher.abort();
}

/// [`run`] with an observer, which hears of attempts and of silence; `done` hands it each outcome and
/// returns the tokens that were processed.
///
/// # Errors
/// [`EngineError::Worker`] where a server ends the run.
pub(super) fn observe<T, F, A, O>(
    runtime: &Runtime,
    count: usize,
    bounds: Bounds,
    ask: A,
    observer: &mut O,
    mut done: impl FnMut(&mut O, usize, Result<T, CaseError>) -> u64,
) -> Result<(), EngineError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    A: Fn(usize, Attempts<T>) -> F + Send + 'static,
    O: Observer + ?Sized,
{
    let mut ended = Ok(());
    run(runtime, count, bounds, ask, &mut |news| {
        let (index, outcome) = match news {
            News::Quiet => return observer.tokens(0),
            News::Attempt(index, failure) => {
                observer.attempt_failed(index, &failure);
                return ControlFlow::Continue(());
            }
            News::Done(_, Err(CallError::Server(what))) => {
                ended = Err(EngineError::Worker(what));
                return ControlFlow::Break(());
            }
            News::Done(index, Err(CallError::Request { what, .. })) => {
                (index, Err(CaseError(what)))
            }
            News::Done(index, Ok(value)) => (index, Ok(value)),
        };
        let tokens = done(observer, index, outcome);
        observer.tokens(tokens)
    });
    ended
}

async fn dispatch<T, F, A>(
    count: usize,
    concurrency: usize,
    window: Arc<Semaphore>,
    sender: Sender<News<T>>,
    ask: A,
) where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    A: Fn(usize, Attempts<T>) -> F + Send + 'static,
{
    let places = Arc::new(Semaphore::new(concurrency));
    let mut tasks = JoinSet::new();
    for index in 0..count {
        let (Ok(begun), Ok(place)) = (
            window.acquire().await,
            Arc::clone(&places).acquire_owned().await,
        ) else {
            return;
        };
        begun.forget();
        let news = sender.clone();
        let attempts = Attempts {
            index,
            news: sender.clone(),
        };
        let asked = ask(index, attempts);
        tasks.spawn(async move {
            let outcome = asked.await;
            drop(place);
            let _ = news.send(News::Done(index, outcome));
        });
        while tasks.try_join_next().is_some() {}
    }
    drop(sender);
    while tasks.join_next().await.is_some() {}
}

fn listen<T>(
    count: usize,
    window: &Semaphore,
    receiver: &Receiver<News<T>>,
    hear: &mut dyn FnMut(News<T>) -> ControlFlow<()>,
) {
    let mut prefix = 0;
    let mut ahead = BTreeSet::new();
    while prefix < count {
        let news = match receiver.recv_timeout(PATIENCE) {
            Ok(news) => news,
            Err(RecvTimeoutError::Timeout) => News::Quiet,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let News::Done(index, _) = &news {
            ahead.insert(*index);
            while ahead.remove(&prefix) {
                prefix += 1;
                window.add_permits(1);
            }
        }
        if hear(news).is_break() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn bounds_hold_and_every_request_has_one_outcome() {
        let now = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let bounds = Bounds {
            concurrency: 5,
            window: 12,
        };
        let (busy, peak) = (Arc::clone(&now), Arc::clone(&most));
        let ask = move |index: usize, _: Attempts<usize>| {
            let (busy, peak) = (Arc::clone(&busy), Arc::clone(&peak));
            async move {
                peak.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // The first one is slow: no more than the window is begun meanwhile.
                let wait = if index == 0 { 60 } else { 1 };
                tokio::time::sleep(Duration::from_millis(wait)).await;
                busy.fetch_sub(1, Ordering::SeqCst);
                Ok(index)
            }
        };
        let mut heard = Vec::new();
        let mut before_first = 0;
        run(&runtime(), 40, bounds, ask, &mut |news| {
            if let News::Done(index, outcome) = news {
                assert_eq!(outcome, Ok(index));
                if index == 0 {
                    before_first = heard.len();
                }
                heard.push(index);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(most.load(Ordering::SeqCst), 5);
        assert_eq!(before_first, 11);
        heard.sort_unstable();
        assert_eq!(heard, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn a_break_drops_what_is_under_way() {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let ask = move |index: usize, _: Attempts<()>| {
            let count = Arc::clone(&count);
            async move {
                let wait = if index == 0 { 1 } else { 10_000 };
                tokio::time::sleep(Duration::from_millis(wait)).await;
                count.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let bounds = Bounds {
            concurrency: 4,
            window: 8,
        };
        let runtime = runtime();
        let started = std::time::Instant::now();
        run(&runtime, 9, bounds, ask, &mut |news| match news {
            News::Done(..) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        drop(runtime);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }
}
