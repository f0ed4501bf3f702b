"""`lossbench`: reads the command line, calls the harness, turns errors into one line and an exit code.

Signals are listened to before anything is imported that takes time: whatever comes in the first second is
understood."""

from __future__ import annotations

import errno
import os
import signal
import sys

from lossbench.errors import ExitCode, LossbenchError

UNDONE = "interrupted: networks that were made have been undone"
HALF_UNDONE = "interrupted: {}; lossbench clean finishes it"


def main() -> None:
    """Entry point. SIGTERM and a hang-up undo everything, as Ctrl-C does."""
    _quiet()
    from lossbench import processes
    from lossbench.runs import interrupt

    # Of a program of our own; who calls us from a program of theirs keeps what they have.
    os.environ["PATH"] = processes.absolute_folders()
    try:
        interrupt.listen()
        code = _run()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    left = interrupt.finish()
    if code == ExitCode.INTERRUPTED:
        _say(HALF_UNDONE.format("; ".join(left)) if left else UNDONE if interrupt.undid() else "interrupted")
    else:
        for text in left:
            _say(f"{text}; lossbench clean finishes it")
    for text in interrupt.spoken():
        _say(text)
    sys.exit(code)


def _quiet() -> None:
    """Nothing is made yet: a Ctrl-C during the imports just ends the program, without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run() -> int:
    from lossbench.cli.app import app
    from lossbench.runs import interrupt

    try:
        code = app(prog_name="lossbench", standalone_mode=False)  # typer passes Ctrl-C on as an exit code
        return code if isinstance(code, int) else 0
    except LossbenchError as error:
        _say(str(error))
        return ExitCode.INTERRUPTED if interrupt.caused(error) else error.exit_code
    except BrokenPipeError:
        return ExitCode.FAILED
    except OSError as error:
        if interrupt.caused(error):
            return ExitCode.INTERRUPTED
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise  # our mistake, and it stays loud
        from lossbench.files import why

        _say(f"{error.filename or 'the output'} can't be written or read ({error.strerror}); {why(error)}")
        return ExitCode.NOT_ABLE
    except Exception as error:  # noqa: BLE001 - typer's errors have no common base that is public
        return _usage(error)


def _usage(error: Exception) -> int:
    """typer's own errors know how to say themselves; anything else is our mistake and stays loud."""
    from lossbench.runs import interrupt

    if type(error).__name__ == "Abort" or interrupt.caused(error):
        return ExitCode.INTERRUPTED
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else _verb()
    if message():  # without a command typer has shown the help already
        _say(f"{message().rstrip('.')}; see {command} --help")
    return ExitCode.USAGE


def _verb() -> str:
    """The command that was typed, for errors that were found before it was made."""
    import typer

    from lossbench.cli.app import app

    words, below = ["lossbench"], getattr(typer.main.get_command(app), "commands", {})
    for word in sys.argv[1:]:
        if word not in below:
            break
        words.append(word)
        below = getattr(below[word], "commands", {})
    return " ".join(words)


def _say(text: str) -> None:
    """An interruption during the imports may leave a module half made, which can't be imported again."""
    try:
        from lossbench.cli.console import Terminal
    except Exception:  # noqa: BLE001 - whatever it is, that is not what there is to be said
        sys.stderr.write(f"lossbench: {text}\n")
        return
    Terminal(stderr=True, soft_wrap=True).print(f"lossbench: {text}", markup=False)


if __name__ == "__main__":
    main()
