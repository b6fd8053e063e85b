//! A program that drives the lock of another library: one line to it, one line back.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub(crate) struct Peer {
    pub(crate) name: String,
    program: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    asked: usize,
}

impl Peer {
    /// Starts a program; the words of its command are separated by spaces, and the last is the client's name.
    pub(crate) fn start(command: &str, url: &str) -> Result<Self> {
        let mut words = command.split(' ');
        let mut program = Command::new(words.next().context("no command")?);
        program.args(words).arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut program = program.spawn().with_context(|| command.to_owned())?;
        let ask = program.stdin.take().context("no input")?;
        let answers = BufReader::new(program.stdout.take().context("no output")?);
        let mut peer = Self { name: String::new(), program, ask, answers, asked: 0 };
        let ready = peer.answer()?;
        peer.name = ready.strip_prefix("ready ").with_context(|| ready.clone())?.to_owned();
        Ok(peer)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Many contend for one name: grants, hand-offs, and the seconds that they took.
    pub(crate) fn load(&mut self, contenders: usize, span: Duration) -> Result<(f64, f64, f64)> {
        self.asked += 1;
        let file = std::env::temp_dir().join(format!("contend-{}-{}", self.program.id(), self.asked));
        let (seconds, shown) = (span.as_secs_f64(), file.display());
        writeln!(self.ask, "load h{} mutex contend-{contenders} {contenders} {seconds} {shown}", self.asked)?;
        let answer = self.answer()?;
        ensure!(answer.starts_with("loaded "), "{}: {answer}", self.name);
        let text = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        let mut grants = Vec::new();
        for line in text.lines() {
            let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [who, asked, granted, ..] = numbers[..] else { anyhow::bail!("not a grant: {line}") };
            grants.push((granted, asked, who));
        }
        grants.sort_unstable();
        let begun = grants.iter().map(|(_, asked, _)| *asked).min().context("no grant")?;
        let ended = grants.last().map_or(begun, |(granted, ..)| *granted);
        let hand_offs = grants.windows(2).filter(|pair| pair[0].2 != pair[1].2).count();
        Ok((grants.len() as f64, hand_offs as f64, Duration::from_nanos(ended - begun).as_secs_f64()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
