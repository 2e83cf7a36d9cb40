//! Servers that list a link to a directory as a directory, and could distinguish the two.

use super::fake::Fake;
use super::fake::tools::{key, remote};
use phoebus_files::DirNature;
use phoebus_files::store::Store;

/// A server with these facts, a link and a directory, which only `LIST` distinguishes.
fn offering(facts: &'static str) -> Fake {
    Fake::with(move |client, verb, _| {
        match verb {
            "FEAT" => client.say(&format!("211-Features\r\n MLST {facts}\r\n SIZE\r\n211 End")),
            "MLSD" => client.list("type=dir; dir\r\ntype=dir; link\r\n"),
            "LIST" => client.list(
                "drwxr-xr-x 2 u g 5 Nov 21 10:00 .\r\ndrwxr-xr-x 2 u g 5 Nov 21 10:00 dir\r\nlrwxrwxrwx 1 u g 5 Nov 21 10:00 link -> dir\r\n",
            ),
            _ => return false,
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fact_that_is_only_offered_tells_no_links() {
    for facts in ["type*;size*;UNIX.slink;X.link;", "type*;NOT.UNIX.slink*;NOT-X.link*;"] {
        let fake = offering(facts);
        let remote = remote(&fake).await;
        let own = remote.own_dirs(&key("d")).await.unwrap();
        assert_eq!((own.is(b"link"), own.is(b"dir")), (DirNature::Link, DirNature::Unknown), "{facts}");
        assert!(!remote.tells_links(), "{facts}");
        assert_eq!(remote.is_link(&key("d/link")).await.unwrap(), Some(true), "{facts}");
    }
    // A link that is named itself does.
    let fake = offering("type*;size*;unix.slink*;x.link*;");
    let remote = remote(&fake).await;
    assert_eq!(remote.own_dirs(&key("d")).await.unwrap().is(b"dir"), DirNature::Yes);
    assert!(remote.tells_links());
}
