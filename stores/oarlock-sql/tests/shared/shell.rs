//! The client program of a server, told one statement at a time.

use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output).lines() }
    }

    pub(crate) fn say(&mut self, statement: &str) {
        writeln!(self.input, "{statement};").unwrap();
        self.input.flush().unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    pub(crate) fn ask(&mut self, statement: &str) -> String {
        self.say(statement);
        self.hear()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
