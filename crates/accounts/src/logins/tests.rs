use super::*;
use std::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

fn ip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

#[tokio::test]
async fn one_large_request_is_waited_for_once() {
    let checks = Arc::new(Checks::new(1));
    let (open, opened) = mpsc::channel::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut all = Vec::new();
    let ask = |from: u8, wait: Option<mpsc::Receiver<()>>| {
        let (checks, order) = (checks.clone(), order.clone());
        tokio::spawn(async move {
            checks
                .ticket(ip(from), move || {
                    let _ = wait.map(|wait| wait.recv());
                    order.lock().unwrap().push(from);
                })
                .await
        })
    };
    all.push(ask(1, Some(opened)));
    tokio::task::yield_now().await;
    for _ in 0..20 {
        all.push(ask(1, None));
        tokio::task::yield_now().await;
    }
    // One who leaves takes no turn.
    let gone = ask(3, None);
    tokio::task::yield_now().await;
    all.push(ask(2, None));
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.is_err());
    open.send(()).unwrap();
    for one in all {
        one.await.unwrap().unwrap();
    }
    let order = order.lock().unwrap();
    let at = order.iter().position(|from| *from == 2).unwrap();
    assert!(at <= 2 && order.len() == 22 && !order.contains(&3), "{order:?}");
    let place = checks.place(ip(9));
    assert!(place.available_permits() == 1 && checks.tickets.lock().unwrap().len() == 1);
}

/// A server with the limits that it has by default.
struct Server {
    checks: Arc<Checks>,
    delays: Delays,
    began: std::time::Instant,
    /// Whose passwords were looked at that were wrong.
    guesses: Arc<Mutex<Vec<&'static str>>>,
}

impl Server {
    fn new() -> Arc<Self> {
        let checks = Arc::new(Checks::new(1));
        Arc::new(Self {
            checks,
            delays: Delays::new(FIRST_DELAY, None, LOGIN_TIMEOUT),
            began: now(),
            guesses: Arc::default(),
        })
    }

    /// Returns true if the password was checked within the login time-out and was correct.
    async fn login(&self, from: u8, user: &'static str, is_right: bool) -> bool {
        let guesses = self.guesses.clone();
        let check = move || {
            if !is_right {
                guesses.lock().unwrap().push(user);
            }
            is_right.then_some(())
        };
        let checked = self.checks.password((ip(from), user), self.delays, check);
        timeout(LOGIN_TIMEOUT, checked).await.is_ok_and(|checked| checked.is_some())
    }

    /// Guesses the password of `user` on `on` connections at once, until the result is dropped. Each connection tries
    /// again after the reply, or after the time `after`.
    fn guess(self: &Arc<Self>, user: &'static str, on: usize, after: Duration) -> JoinSet<()> {
        let guesses = std::iter::repeat_n(self.clone(), on).map(|server| async move {
            loop {
                let _ = timeout(after, server.login(1, user, false)).await;
            }
        });
        guesses.collect()
    }

    /// Whether some guesses at `user` were checked, and no more than the delays allow.
    fn is_bounded(&self, user: &str) -> bool {
        let guesses = self.guesses.lock().unwrap().iter().filter(|of| **of == user).count();
        let most = (now() - self.began).as_secs() / self.delays.most.as_secs();
        // Delays grow for six rounds, and who was there when the user came to be known waits in the other queue.
        guesses > 10 && guesses as u64 <= (most + 2 * 6) * AT_ONCE as u64
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn guesses_delay_a_user_no_longer_than_the_login_timeout() {
    for after in [HOUR, Duration::from_secs(1)] {
        for wait in 0..30 {
            let server = Server::new();
            let _guesses = server.guess("jane", 3, after);
            sleep(HOUR / 4 + Duration::from_millis(997 * wait)).await;
            // The second time she is known there.
            for time in ["first", "second"] {
                assert!(server.login(1, "jane", true).await, "{after:?} {wait} {time}");
                sleep(HOUR / 4).await;
            }
            assert!(server.is_bounded("jane"), "{after:?} {wait}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn known_user_is_not_delayed_by_guesses_at_other_users() {
    let server = Server::new();
    assert!(server.login(1, "ann", true).await);
    let _guesses = ["jane", "joe", "bob", "eve", "(unknown)"].map(|user| server.guess(user, 3, HOUR));
    sleep(HOUR).await;
    for _ in 0..50 {
        let began = now();
        assert!(server.login(1, "ann", true).await);
        assert_eq!(now() - began, Duration::ZERO);
        sleep(Duration::from_secs(7)).await;
    }
    assert!(server.is_bounded("jane") && server.is_bounded("(unknown)"));
    // Guesses at this user's own password are still delayed.
    let _guesses = server.guess("ann", 3, HOUR);
    sleep(HOUR).await;
    assert!(server.login(1, "ann", true).await && server.is_bounded("ann"));
}

#[tokio::test(start_paused = true)]
async fn guesses_at_one_user_do_not_block_first_logins_of_others() {
    let server = Server::new();
    let _guesses = server.guess("jane", 90, HOUR);
    sleep(HOUR).await;
    for user in ["joe", "bob", "eve"] {
        assert!(server.login(1, user, true).await);
        sleep(Duration::from_secs(7)).await;
    }
    assert!(server.is_bounded("jane"));
}

#[tokio::test(start_paused = true)]
async fn delay_passes_before_the_next_password_is_checked() {
    let server = Server::new();
    let seconds = Duration::from_secs;
    for owed in [0, 1, 2, 4, 8, 16, 20, 20] {
        let began = now();
        assert!(!server.login(1, "jane", false).await);
        assert_eq!(now() - began, seconds(owed));
        assert!(server.login(2, "jane", true).await && now() - began == seconds(owed), "from elsewhere at once");
    }
    // A correct password waits as long as a wrong one. A client that disconnects early learns nothing, and
    // reconnecting does not shorten the delay.
    let failed = now();
    for _ in 0..19 {
        assert!(timeout(seconds(1), server.login(1, "jane", true)).await.is_err());
    }
    assert!(server.login(1, "joe", true).await && now() - failed == seconds(20));
}

#[tokio::test(start_paused = true)]
async fn one_network_of_ipv6_is_one_line() {
    let server = Server::new();
    let login = async |from: &str, is_right: bool| {
        let check = move || is_right.then_some(());
        server.checks.password((from.parse().unwrap(), "jane"), server.delays, check).await.is_some()
    };
    assert!(!login("2001:db8::1", false).await);
    let began = now();
    assert!(login("2001:db8:0:1::1", true).await && now() == began, "another /64 waits for nothing");
    assert!(login("2001:db8::ffff:2", true).await && now() - began == server.delays.first);
}
