"""Shared by all commands: parsing, running, progress, and one clear line on a user's mistake.

A command's own options are a small dataclass of `option`s that tyro parses; all other options are read as
`--dotted.path value` (or `--dotted.path=value`) and passed to `override`, like the settings of a sweep or a test.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
import yaml
from rich import progress
from rich.console import Console
from rich.table import Table
from tyro import constructors

import ray_atr
from ray_atr.common.digests import unsealed
from ray_atr.common.override import as_typed, describe, nearest_path
from ray_atr.common.progress import Echo, NamedProgress
from ray_atr.common.redaction import redact
from ray_atr.common.runtime import TERMINATED, advice_of, is_in_a_copy_of_a_job, terminate_like_interrupt
from ray_atr.common.settings import RepeatedNameError, counted, each_once, local_path, nearest, refuse, shortened
from ray_atr.common.storage import locate
from ray_atr.common.table import minutes
from ray_atr.training.recipes import RECIPES

Options = TypeVar("Options")

# 74 is EX_IOERR of sysexits.h.
EXIT_BAD_INPUT, EXIT_IO, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 2, 74, 130, 141, 143
MISTAKEN_PATHS = (FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)
MAX_MESSAGE = 480  # characters of an error that are printed, since it may quote a long input
SECONDS = 10.0  # longest time without output
DISPLAYED = threading.Event()
"""Set while a live display shows progress, so that no lines are needed."""

HELP_SETTINGS = "--help-settings"
ABOUT_SETTINGS = (
    "Every setting of the experiment is given as --dotted.path VALUE, e.g. --train.epochs 20. "
    f"{HELP_SETTINGS} lists the settings, and the recipes."
)


def option(default: Any = dataclasses.MISSING, help: str = "", metavar: str = "", unset: str = "") -> Any:
    """A field of a command's options: default, help, placeholder of its value, and what happens without a value."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "unset": unset})


OPTIONS_AND_SETTINGS = constructors.ConstructorRegistry()
"""How tyro reads the fields that `option` and `setting` declare."""


@OPTIONS_AND_SETTINGS.struct_rule
def _read_fields(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
    fields = dataclasses.fields(info.type) if dataclasses.is_dataclass(info.type) else ()
    if not any("help" in field.metadata for field in fields):
        return None
    hints = get_type_hints(info.type, include_extras=True)
    values = vars(info.default) if isinstance(info.default, info.type) else {}
    specs = (_read_field(entry, hints[entry.name], values) for entry in fields)
    return constructors.StructConstructorSpec(info.type, tuple(specs))


def _read_field(field: dataclasses.Field[Any], hint: Any, values: Mapping[str, Any]) -> constructors.StructFieldSpec:
    """The tyro specification of a field. Empty defaults are hidden, as the help says what happens without a value."""
    default = constructors.MISSING_NONPROP if field.default is dataclasses.MISSING else field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    metavar, unset = field.metadata.get("metavar"), field.metadata.get("unset")
    shown = f"(default: {unset})" if unset else _shown
    hint = Annotated[hint, tyro.conf.arg(metavar=metavar or None, help_behavior_hint=shown)]
    return constructors.StructFieldSpec(field.name, hint, values.get(field.name, default), field.metadata.get("help"))


def _shown(default: str) -> str:
    return "" if default in ("", "''", "None") else f"(default: {default})"


OURS = re.compile(r"Error parsing [^-\s]\S*: (.*)")
UNREADABLE = re.compile(r"Error parsing (--\S+): .*?('[^']*').*?helptext: \1 (\S+(?: \.\.\.)?)")
CHOICE = re.compile(r"invalid choice ('.*?') for argument '(--\S+)'\. Expected one of \((.*?),?\)")
RULE = re.compile(r"[─-]{9,}")
COMMANDS = re.compile(r"(?:Available subcommands: |Expected one of \{)((?:\w+, )*\w+)")
NUMBERS = {"INT": "a whole number", "INT ...": "whole numbers", "PORT": "a whole number"}
RANGE = re.compile(r"(\d+)(?:\.\.+|-)(\d+)")


@contextlib.contextmanager
def _in_our_words(arguments: Sequence[str]) -> Iterator[None]:
    """Replaces tyro's message on a refused value, or on a range instead of numbers, by a ValueError in our form."""
    _refuse_repeated(arguments)
    seeds = list(arguments[arguments.index("--seeds") + 1 :]) if "--seeds" in arguments else []
    for word in itertools.takewhile(lambda word: not word.startswith("--"), seeds):
        if match := RANGE.fullmatch(word):
            first, last = sorted(map(int, match.groups()))
            numbers = " ".join(map(str, range(first, min(last, first + 3) + 1))) + " ..." * (last > first + 3)
            raise ValueError(f"--seeds: got {word}; allowed numbers with spaces between them: --seeds {numbers}")
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), OPTIONS_AND_SETTINGS:
            yield
    except SystemExit:
        if words := _of_box(output.getvalue(), arguments):
            output = io.StringIO()
            raise ValueError(words) from None
        raise
    finally:
        sys.stderr.write(output.getvalue())


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """ValueError for an option that is given twice: tyro would take the last one."""
    words = [word[2:] for word in itertools.takewhile(lambda word: word != "--", arguments) if word.startswith("--")]
    options = [word.partition("=")[0].replace("_", "-").removeprefix("no-") for word in words]
    for name, count in Counter(options).items():
        if count > 1 and "." not in name:
            raise ValueError(f"--{name}: given {counted(count, 'time')}; allowed once, with all its values behind it")


def _of_box(box: str, arguments: Sequence[str]) -> str:
    """Our message on a value that tyro refuses in a box of lines; empty for other mistakes, whose boxes are clear."""
    # The box has ASCII dashes in a terminal without line characters.
    text = " ".join(" ".join(line.strip("│╭╮╰╯ ") for line in box.splitlines()).split())
    parts = RULE.split(text.partition(" For full helptext")[0])
    message = " ".join(part.strip() for part in parts if part.strip())
    if match := CHOICE.search(message):
        return f"{match[2]}: got {match[1]}; allowed one of {match[3].replace(chr(39), '')}"
    if match := UNREADABLE.search(message):
        return f"{match[1]}: got {match[2]}; allowed {NUMBERS.get(match[3], 'a number')}"
    given = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if (match := COMMANDS.search(message)) and given not in (commands := match[1].split(", ")):
        got, hint = (repr(given), nearest(given, commands)) if given else ("none", "")
        return f"command: got {got}; allowed one of {match[1]}{hint}"
    match = OURS.search(message)
    return match[1].partition(" Argument helptext:")[0] if match else ""


def parse(options: Any, arguments: Sequence[str], program: str) -> Any:
    """A command's options from the command line; unknown ones are refused."""
    with _in_our_words(arguments):
        parsed = tyro.cli(options, args=list(arguments), prog=program, config=(tyro.conf.OmitSubcommandPrefixes,))
    _require_values(parsed, arguments)
    _require_places_that_stay(parsed)
    return parsed


def _require_values(options: Any, arguments: Sequence[str]) -> None:
    """ValueError for an option that takes several values and is given without one, as with an unset variable."""
    values = dict(_values_of(options))
    for word, following in itertools.pairwise([*arguments, "--"]):
        name = word.removeprefix("--").replace("-", "_")
        if word.startswith("--") and following.startswith("--") and values.get(name) == ():
            raise refuse(word, "nothing", "one value or more")


def _values_of(options: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of a command's options, also of those in a part of them."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        yield from _values_of(value) if dataclasses.is_dataclass(value) else [(field.name, value)]


def _require_places_that_stay(options: Any) -> None:
    """ValueError for an empty --out or --resume, as of an unset variable, and if a submitted job is to write into Ray's copy of
    its working directory: the result would be deleted.
    """
    for name in ("out", "resume"):
        place = getattr(options, name, None)
        if place == "":
            raise refuse(f"--{name}", place, "a folder or a URL")
        if place and (path := local_path(place)) is not None and not path.is_absolute() and is_in_a_copy_of_a_job():
            allowed = "an absolute path or a URL in a submitted job, whose working directory Ray deletes"
            raise refuse(f"--{name}", place, allowed)


def parse_with_settings(
    options: type[Options], arguments: Sequence[str], program: str, others: Mapping[str, str] | None = None
) -> tuple[Options, dict[str, str]]:
    """A command's options, and the settings to override by dotted path, from the command line. `others` maps options of
    other commands to these commands. ValueError for one of them, or a misspelt option.
    """
    if HELP_SETTINGS in arguments:
        print_settings()
        raise SystemExit(0)
    about = f"{inspect.cleandoc(options.__doc__ or '')}\n\n{ABOUT_SETTINGS}"
    with _in_our_words(arguments):
        parsed, rest = tyro.cli(
            options, args=list(arguments), prog=program, description=about, return_unknown_args=True
        )
    _require_values(parsed, arguments)
    _require_places_that_stay(parsed)
    options_here = [name for name, _ in _values_of(parsed)]
    for word in rest:
        if word.startswith("--"):
            refuse_unknown(word[2:].partition("=")[0].replace("-", "_"), options_here, others or {})
    return parsed, settings_from(rest)


def check_actors(encoding: Any) -> None:
    """ValueError for options of Ray's actors beside `--ray never`, which would not read them. `encoding` are a command's options
    of how it encodes.
    """
    if encoding.ray != "never":
        return
    unread = [field.name for field in dataclasses.fields(encoding) if field.name not in ("ray", "batch_size")]
    for name in unread:
        if (value := getattr(encoding, name)) != getattr(type(encoding)(), name):
            allowed = "nothing with --ray never: this process encodes, on a GPU if there is one"
            raise refuse(f"--{name.replace('_', '-')}", value, allowed)


def refuse_unknown(path: str, options_here: Sequence[str], others: Mapping[str, str]) -> None:
    """ValueError for an option or setting that no code declares, before slow imports. `options_here` are the command's, `others`
    maps options of other commands to these commands.
    """
    names, top_level = declared_settings()
    if not top_level or path in top_level:
        return
    elsewhere, unknown = others.get(path), [part for part in path.split(".") if part not in names]
    if not unknown and not elsewhere and "." in path:
        return
    if "." in path:
        raise ValueError(f"{path}: no such setting; {HELP_SETTINGS} lists them{nearest(unknown[0], names)}")
    hint = nearest(path, [*options_here, *top_level], 0.85 if elsewhere else 0.65).replace("mean ", "mean --")
    hint = hint or (f" (it is an option of {elsewhere})" if elsewhere else "")
    if not hint and nearest(path, names, 0.8):
        # The name of a setting without its path. Only this mistake needs the experiment, whose import takes seconds.
        hint = nearest_path(RECIPES["quickstart"](), path).replace("mean ", "mean --")
    allowed = ", ".join("--" + option for option in options_here).replace("_", "-")
    typed = path.replace("_", "-")
    raise ValueError(f"--{typed}: no such option here; allowed {allowed}, and settings ({HELP_SETTINGS}){hint}")


DECLARED = re.compile(r"^    (\w+): .+?= (?:setting|inherited)\(", re.MULTILINE)


@cache
def declared_settings() -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of all fields of settings classes, and of the fields of `Experiment`, read from the source, since importing
    torch for an experiment takes seconds. Empty if the source cannot be read.
    """
    package = Path(ray_atr.__file__).parent
    try:
        names = {name for file in package.rglob("*.py") for name in DECLARED.findall(file.read_text(encoding="utf-8"))}
        text = (package / "training" / "experiment.py").read_text(encoding="utf-8")
    except OSError:
        return frozenset(), ()
    return frozenset(names), tuple(DECLARED.findall(text.partition("class Experiment(")[2]))


def settings_from(arguments: Sequence[str]) -> dict[str, str]:
    """`["--train.epochs", "3", "--seed=1"]` -> `{"train.epochs": "3", "seed": "1"}`. ValueError on anything else."""
    values: dict[str, str] = {}
    queue = list(arguments)
    while queue:
        token = queue.pop(0)
        if not token.startswith("--") or len(token) == 2:
            hint = f"settings are written --dotted.path VALUE (see {HELP_SETTINGS})"
            if values and not token.startswith("-"):
                last = next(reversed(values))
                several = "values of one setting are joined: " + shortened(f"--{last} {values[last]},{token}")
                if last == "data.source":
                    sets = shortened(f"{values[last]} {token}")
                    several = f"several data sets are made one by ray-atr prepare join --sets {sets} ..."
                hint += f"; {several}"
            raise ValueError(f"{token}: not understood here; {hint}")
        path, equals, value = token[2:].partition("=")
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ValueError(f"--{path}: a value is missing; write --{path} VALUE (see {HELP_SETTINGS})")
            value = queue.pop(0)
        path = path.replace("-", "_")
        if path in values:
            raise ValueError(f"--{path}: given twice, {values[path]!r} and {value!r}")
        values[path] = value
    return values


def read_config(place: str) -> dict[str, Any]:
    """The settings of a YAML or JSON file, by dotted path; it may be nested or, as a run folder's experiment.json,
    flat. ValueError names the file if it cannot be read as settings.
    """
    file = locate(place)
    try:
        # Editors of Windows put a mark first, which JSON does not allow.
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"--config: {file}: no such file") from None
    except IsADirectoryError:
        remedy = "allowed a YAML or JSON file, such as its experiment.json"
        raise ValueError(f"--config: {file}: a folder; {remedy}") from None
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise ValueError(f"--config: {file}: not UTF-8 ({byte}); save the file as UTF-8") from None
    try:
        is_json = file.suffix == ".json"
        content = json.loads(text, object_pairs_hook=each_once) if is_json else yaml.load(text, _OnceLoader)
    except RepeatedNameError as error:
        raise ValueError(f"--config: {file}: {error}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"--config: {file}: not YAML or JSON ({shortened(str(error))})") from None
    if not isinstance(content, dict):
        raise ValueError(f"--config: {file}: allowed settings by name, such as train: {{epochs: 20}}")
    return dict(_flat(unsealed(content), str(file)))


class _OnceLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which refuses a repeated key."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked before `<<` is merged, as a key beside it may replace a merged one.
        node = super().compose_mapping_node(anchor)
        each_once((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return node


def _flat(content: Mapping[Any, Any], file: str, prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in content.items():
        items = _flat(value, file, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        for path, item in items.items():
            if path in values:
                raise ValueError(f"--config: {file}: {path} occurs twice")
            values[path] = item
    return values


def print_settings() -> None:
    """The settings tree as a table: path, default, what is allowed, what it does; then the recipes."""
    table = Table("setting", "default", "allowed", "meaning", box=None, pad_edge=False)
    for entry in describe(RECIPES["quickstart"]()):
        default = "none" if entry.default is None else str(as_typed(entry.default))
        table.add_row("--" + entry.path, default, entry.allowed or entry.type, entry.help)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    recipes = Table("recipe", "what it is", box=None, pad_edge=False)
    for name, recipe in RECIPES.items():
        recipes.add_row(name, recipe.about)
    console.print()
    console.print(recipes)


@contextlib.contextmanager
def counting(
    unit: str, console: Console, *begun: str, write: Echo | None = None, seconds: float = SECONDS
) -> Iterator[NamedProgress]:
    """A callback (what, done, total) that shows a bar for each `what`, with elapsed and remaining time; for `begun` at once.

    A file gets a bar only at its end, so there it also prints a line after every `seconds`. `write` prints it: the `echo` of a
    `heartbeat`, which then prints no line of its own.
    """
    write = write or (lambda line: print_plain(console, [line]))
    what = progress.TextColumn("{task.description}", markup=False)
    columns = (what, progress.BarColumn(), progress.MofNCompleteColumn())
    times = (progress.TextColumn(unit), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *times, console=console) as bar:
        tasks = {name: bar.add_task(name, total=None) for name in begun}
        last = time.monotonic()

        def count(name: str, done: int, total: int) -> None:
            nonlocal last
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)
            # A file gets a bar only at its end, and a full bar says nothing about what follows.
            if console.is_terminal and done < total:
                DISPLAYED.set()
            else:
                DISPLAYED.clear()
            if not console.is_terminal and done < total and time.monotonic() - last >= 0.9 * seconds:
                write(f"{name}: {done:,} of {total:,} {unit}".strip())
                last = time.monotonic()

        try:
            yield count
        except (ValueError, *MISTAKEN_PATHS):
            # On a mistake the empty bar is removed, and only its line remains.
            bar.live.transient = True
            raise
        finally:
            DISPLAYED.clear()


@contextlib.contextmanager
def heartbeat(
    name: str, *, seconds: float = SECONDS, write: Echo = print, clock: Callable[[], float] = time.monotonic
) -> Iterator[Echo]:
    """An `echo` that prints `what` at once and, after every `seconds` without output, a line with the elapsed time."""
    started = last = clock()
    lock, stop = threading.Lock(), threading.Event()

    def echo(message: str) -> None:
        nonlocal last
        with lock:
            write(message)
            last = clock()

    def watch() -> None:
        # A closed pipe or a full disk ends this thread; the command ends at its own next line.
        with contextlib.suppress(OSError):
            # A tenth early, so that a busy machine does not make the silence longer.
            while not stop.wait(seconds / 20):
                if not DISPLAYED.is_set() and clock() - last >= 0.9 * seconds:
                    echo(f"... {minutes(clock() - started)} elapsed")

    echo(name)
    thread = threading.Thread(target=watch, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield echo
    finally:
        stop.set()
        thread.join()


def print_plain(console: Console, lines: Sequence[str]) -> None:
    """Print lines without markup, colours or wrapping."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run_script(main: Callable[[], None]) -> None:
    """Run a command: exit 2 with one line on a user's mistake, 74 if a disk or the network fails (complete files stay: the same
    command continues, a sweep with --resume), 130 with advice on Ctrl-C, 143 on SIGTERM or SIGHUP.
    """
    terminate_like_interrupt()
    _end_an_import_at_once()
    sys.unraisablehook = _repeat_interrupt
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Readers of a pipe, a file or a job's log get each line at once, as in a terminal. A sweep of hours must not end at the
        # arrow of its table because the locale has none.
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    try:
        # If it is gone, torch's arithmetic would end the process with "Cannot load libtorch_cpu.so".
        os.getcwd()
        main()
        # Only the exit is left, also that of Ray and torch: an interrupt ends it without a traceback of theirs.
        atexit.register(_end_by_a_signal_at_once)
    except (ValueError, *MISTAKEN_PATHS) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does; the remaining output is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_PIPE) from None
    except SystemExit as stop:
        # rich ends the process so if the pipe is closed, with the exit code of failed trials.
        if isinstance(stop.__context__, BrokenPipeError):
            raise SystemExit(EXIT_PIPE) from None
        raise
    except OSError as error:
        advice = "".join(f"; {note}" for note in getattr(error, "__notes__", ())[:1])
        print(f"error: {_one_line(error)}; nothing that was finished is lost{advice}", file=sys.stderr)
        raise SystemExit(EXIT_IO) from None
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        advice = advice_of(interrupt)
        print(f"\ninterrupted{': ' + advice if advice else ''}", file=sys.stderr, flush=True)
        # Another Ctrl-C ends the process at once, without a traceback from cleaning up.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise SystemExit(EXIT_TERMINATED if TERMINATED.is_set() else EXIT_INTERRUPTED) from None


def _end_by_a_signal_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _end_an_import_at_once() -> None:
    """Make Ctrl-C end the process at once while torch is imported, with the usual line and exit code.

    An exception in torch's C++ code would abort the process with its own message. No files are open then.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            os.write(sys.stderr.fileno(), b"\ninterrupted\n")
            os._exit(EXIT_TERMINATED if TERMINATED.is_set() else EXIT_INTERRUPTED)
        signal.default_int_handler(number, frame)

    # A SIGINT that is ignored, as in a shell's background jobs, stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


_tell_ignored = sys.unraisablehook


def _repeat_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat a stop that Python ignores: one in the callback of a weak reference or of a fork, or while garbage is collected."""
    error = ignored.exc_value
    # Ray's handler, while it starts, answers a SIGTERM by an exit.
    is_exit = isinstance(error, SystemExit) and error.code == signal.SIGTERM
    if not isinstance(error, KeyboardInterrupt) and not is_exit:
        _tell_ignored(ignored)
        return
    release: Callable[[], None] | None = getattr(logging, "_releaseLock", None)
    if release is not None and ignored.object == release:
        # Python before 3.13 holds the lock of logging during a fork, and other threads would wait for it for ever.
        with contextlib.suppress(RuntimeError):
            release()
    # In a moment, when what ignores it has been left. A signal also ends a wait, and SIGINT itself may be ignored.
    number = signal.SIGTERM if is_exit or TERMINATED.is_set() else signal.SIGINT
    threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, number)).start()


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        is_file = isinstance(error, FileExistsError) and os.path.isfile(error.filename)
        line = f"{error.filename}: {'is a file, not a folder' if is_file else error.strerror}"
    elif isinstance(error, FileNotFoundError) and not _has_working_directory():
        line = "the working directory no longer exists; change to one that does"
    else:
        line = " ".join(redact(str(error)).split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 1]}…"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
