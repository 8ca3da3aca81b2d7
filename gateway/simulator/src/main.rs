//! The scripted engine on a TCP port, for load tests of a gateway.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use futures::StreamExt;
use smg_simulator::{Script, SimulatedEngine, Tokens, default_card};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

/// Files of a model folder that a gateway asks for.
const TOKENIZER_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// A scripted engine worker: a test double for gateways, without a model.
#[derive(Parser)]
#[command(name = "smg-simulator", version)]
struct Options {
    /// Address to listen at.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// TCP port; 0 takes a free one.
    #[arg(long, default_value_t = 30001)]
    port: u16,
    /// Name of the served model.
    #[arg(long, default_value = "simulated")]
    model: String,
    /// Tokens of prompt and answer that the model card allows.
    #[arg(long, default_value_t = 8192)]
    max_context_length: i32,
    /// Folder with the tokenizer files that are handed to gateways.
    #[arg(long)]
    tokenizer_dir: Option<PathBuf>,
    /// Tokens of an answer, fewer where the request says so; the prompt is echoed over and over.
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Tokens per message.
    #[arg(long, default_value_t = 1)]
    tokens_per_message: usize,
    /// Microseconds before the first token.
    #[arg(long, default_value_t = 0)]
    first_token_delay_us: u64,
    /// Microseconds between tokens. The schedule is kept on average; the timer's step is a millisecond.
    #[arg(long, default_value_t = 0)]
    token_delay_us: u64,
    /// Threads that serve; 0 = one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if options.threads > 0 {
        runtime.worker_threads(options.threads);
    }
    let outcome = runtime
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(run(&options)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smg-simulator: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> io::Result<()> {
    let engine = engine(options)?;
    let listener = TcpListener::bind((options.host.as_str(), options.port)).await?;
    println!("smg-simulator listens at grpc://{}", listener.local_addr()?);
    let incoming = TcpListenerStream::new(listener).map(|connection| {
        let connection = connection?;
        connection.set_nodelay(true)?;
        Ok(connection)
    });
    let stopper = engine.clone();
    engine
        .serve(incoming, async move {
            // Without a signal handler the process ends by the signal itself, which is as good.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            stopper.drop_connections();
        })
        .await
}

fn engine(options: &Options) -> io::Result<SimulatedEngine> {
    let mut card = default_card(&options.model);
    card.max_context_length = options.max_context_length;
    if let Some(folder) = &options.tokenizer_dir {
        // Gateways that cannot take the files over gRPC read them there.
        card.tokenizer_path = folder.display().to_string();
    }
    let mut builder = SimulatedEngine::builder()
        .card(card)
        .counts_only()
        .script(Script {
            tokens: Tokens::Cycle {
                ids: Vec::new(),
                count: options.tokens,
            },
            tokens_per_message: options.tokens_per_message,
            first_token_delay: Duration::from_micros(options.first_token_delay_us),
            token_delay: Duration::from_micros(options.token_delay_us),
            ..Script::default()
        });
    if let Some(folder) = &options.tokenizer_dir {
        builder = builder.tokenizer_files(&tokenizer_files(folder)?)?;
    }
    Ok(builder.build())
}

fn tokenizer_files(folder: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in TOKENIZER_FILES {
        match std::fs::read(folder.join(name)) {
            Ok(content) => {
                files.insert(name.to_owned(), content);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if files.contains_key("tokenizer.json") {
        return Ok(files);
    }
    let message = format!("--tokenizer-dir {} holds no tokenizer.json", folder.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}
