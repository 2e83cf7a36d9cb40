//! Standard streams over a loadable driver, for trying out and debugging one (docs/guide/drivers.md).

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand};
use phoebus_net::transport::{Target, Transport};
use phoebus_net::wrapblock::Limits;
use phoebus_net::{Profile, Stream, driver};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Says what a driver is, or moves standard input and output over one connection of it.
#[derive(Debug, Parser)]
struct Args {
    /// The driver; its path is absolute.
    library: PathBuf,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Accepts one connection. The address, with the port that was chosen for 0, goes to standard error.
    Listen(Connection),
    /// Makes one.
    Connect(Connection),
}

#[derive(Debug, clap::Args)]
struct Connection {
    address: SocketAddr,
    /// Options of the driver.
    #[arg(value_name = "OPTION=VALUE", value_parser = option)]
    options: Vec<(String, String)>,
    /// Receives as many bytes, and not up to the peer's end, which only a driver with true ends has. The peer is then another
    /// `drivercat`: each tells the other that it was done.
    #[arg(long, value_name = "BYTES")]
    receive: Option<u64>,
}

fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("an option is written NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drivercat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let library = driver::Library::load(&args.library)?;
    let (listens, connection) = match args.role {
        None => {
            println!("{}", library.title());
            library.options().iter().for_each(|option| println!("  {option}"));
            return Ok(());
        }
        Some(Role::Listen(connection)) => (true, connection),
        Some(Role::Connect(connection)) => (false, connection),
    };
    let Connection { address: addr, options, receive } = connection;
    let transport = library.transport("driver", &options.into_iter().collect(), Limits::default())?;
    let profile = Profile::default();
    let stream = if listens {
        let listener = transport.listen(addr, &profile)?;
        eprintln!("listening on {}", listener.local_addr()?);
        listener.accept().await?.0.handshake().await?
    } else {
        const LIMIT: Duration = Duration::from_secs(10);
        transport.connect(&Target { addr, name: "".into(), early: false }, &profile, LIMIT).await?
    };
    ensure!(
        receive.is_some() || stream.has_authenticated_close(),
        "the driver has no true ends; say how much to --receive"
    );
    tokio::try_join!(send(&stream), take(&stream, receive))?;
    if !stream.has_authenticated_close() {
        part(&stream).await?;
    }
    eprintln!("{:?}", stream.stats()?);
    stream.close();
    while transport.connections() > 0 {
        // The driver's thread sends the remaining bytes, so the process must not exit before it is done.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Sends standard input over the connection, and returns when the peer has all of it.
async fn send(stream: &Stream) -> anyhow::Result<()> {
    let (mut input, mut buffer) = (tokio::io::stdin(), vec![0; 128 << 10]);
    loop {
        let n = input.read(&mut buffer).await.context("standard input")?;
        if n == 0 {
            break;
        }
        write(stream, &buffer[..n]).await.context("sending")?;
    }
    if stream.has_authenticated_close() {
        stream.shutdown_write().context("ending")?;
        stream.delivered(Duration::MAX).await.context("delivering")?;
    }
    Ok(())
}

async fn write(stream: &Stream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells the peer, another `drivercat`, that everything was received, and waits for the same message. Without this
/// exchange, neither side knows whether bytes were lost when the connection ended.
async fn part(stream: &Stream) -> anyhow::Result<()> {
    const DONE: u8 = 6;
    write(stream, &[DONE]).await.context("parting")?;
    let mut answer = [0];
    loop {
        stream.readable().await.context("parting")?;
        match stream.try_read(&mut answer) {
            Ok(_) if answer == [DONE] => return Ok(()),
            Ok(_) => bail!("the peer sends more than was to be received"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("parting"),
        }
    }
}

/// Copies the connection to standard output, up to its end or the requested number of bytes.
async fn take(stream: &Stream, bytes: Option<u64>) -> anyhow::Result<()> {
    let (mut output, mut buffer) = (tokio::io::stdout(), vec![0; 128 << 10]);
    let mut left = bytes.unwrap_or(u64::MAX);
    while left > 0 {
        stream.readable().await.context("receiving")?;
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match stream.try_read(&mut buffer[..most]) {
            Ok(0) if bytes.is_some() => bail!("the peer's stream ended {left} bytes early"),
            Ok(0) => break,
            Ok(n) => {
                output.write_all(&buffer[..n]).await.context("standard output")?;
                left -= n as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
    output.flush().await.context("standard output")
}
