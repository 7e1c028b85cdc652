"""Programs that try to get out, to stay, to see the tests or to forge their verdict. None may gain or leave anything."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from winnowrl.envs.code import Limits, run_tests
from winnowrl.envs.code.image import SandboxUnavailableError
from winnowrl.envs.code.sandbox import NOBODY, require_sandbox
from winnowrl.envs.code.seccomp import MACHINES, REFUSED

SECRET = "k-7f3a-sealed"
# No program can know these values; one that passes a check has cheated.
TESTS = f"""
import unittest
assert solve(2) == 1729041
assert solve([3, 1, 2]) == {SECRET!r}
for number in range(3):
    assert solve(number) == number + 8000017
for got, wanted in zip(map(solve, [11, 12]), [730023, 730057]):
    assert got == wanted
class TestBase(unittest.TestCase):
    def setUp(self):
        self.before = solve(13)
class TestSolve(TestBase):
    def test_it(self):
        self.assertEqual(solve(7), 555017)
    def test_parts(self):
        for number in (14, 15):
            with self.subTest(number=number):
                self.assertEqual(solve(number), number + 8000017)
class TestPlain:
    def test_it(self):
        assert solve(16) == 8000033
def test_function():
    value = solve(17)
    assert value == 8000034
"""
TOTAL = 8
SHORT = Limits(wall_s=1.5, cpu_s=1.0, memory_mb=160, processes=8, disk_mb=8, output_kb=64)

# Where a program can see that it got through, it returns a text that starts with LEAK.
ATTACKS = {
    # -- resources
    "fork bomb": """
        import os
        def solve(x):
            while True:
                try: os.fork()
                except OSError: pass
        """,
    "thread bomb": """
        import threading, time
        def solve(x):
            threads = []
            while True:
                try:
                    threads.append(threading.Thread(target=time.sleep, args=(60,), daemon=True)); threads[-1].start()
                except RuntimeError:
                    return 'blocked' if len(threads) < 12 else f'LEAK {len(threads)} threads'
        """,
    "memory of one process": """
        def solve(x):
            kept = []
            try:
                for _ in range(1000): kept.append(bytearray(10 << 20))
            except MemoryError:
                size = len(kept); kept.clear()
                return 'blocked' if size < 16 else f'LEAK {size}0 MB'
            return 'LEAK 10 GB'
        """,
    "memory of many processes": """
        import os, time
        def solve(x):
            for _ in range(6):
                if os.fork() == 0:
                    kept = bytearray(b'x') * (100 << 20)
                    time.sleep(30)
            time.sleep(30)
        """,
    "disk": """
        def solve(x):
            total = 0
            try:
                for n in range(100):
                    with open(f'/tmp/{n}', 'wb') as f: f.write(b'x' * (1 << 20)); total += 1
            except OSError:
                return 'blocked' if total <= 8 else f'LEAK {total} MB'
            return f'LEAK {total} MB'
        """,
    "shared memory disk": """
        import os
        def solve(x):
            for where in ('/dev/shm/x', '/dev/x', '/run/x', '/var/tmp/x', '/x'):
                try: open(where, 'wb').write(b'x' * (1 << 20))
                except OSError: continue
                return 'LEAK wrote ' + where
            return 'blocked'
        """,
    "anonymous memory file": """
        import os
        def solve(x):
            try: fd = os.memfd_create('x')
            except OSError: return 'blocked'
            return 'LEAK memfd'
        """,
    "endless output": """
        def solve(x):
            while True: print('PASS ' * 1000)
        """,
    "sleep past the limit": """
        import time
        def solve(x): time.sleep(60)
        """,
    "busy past the limit": """
        def solve(x):
            while True: pass
        """,
    "busy at import": "while True: pass",
    "raise its own limits": """
        import resource
        def solve(x):
            for name in ('RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_NPROC', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE'):
                try: resource.setrlimit(getattr(resource, name), (2 ** 40, 2 ** 40))
                except (ValueError, OSError): continue
                return 'LEAK raised ' + name
            return 'blocked'
        """,
    "large buffers in the kernel": """
        import fcntl, os, socket
        def solve(x):
            pair = socket.socketpair()
            calls = {'pipe': lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20), 'bind': lambda: pair[0].bind('/tmp/s'),
                     'connect': lambda: pair[0].connect('/tmp/s'), 'listen': lambda: pair[0].listen(4096),
                     'descriptors': lambda: socket.send_fds(pair[0], [b'x'], [0])}
            for option in (7, 8, 32, 33):  # SO_SNDBUF, SO_RCVBUF and their FORCE
                calls[f'option {option}'] = lambda: pair[0].setsockopt(1, option, 1 << 24)
            for domain in range(1, 46):
                calls[f'domain {domain}'] = lambda: socket.socket(domain, socket.SOCK_STREAM)
            for name, call in calls.items():
                try: call()
                except OSError: continue
                return 'LEAK ' + name
            return 'blocked'
        """,
    "memory that nobody is charged for": """
        import mmap, os
        def solve(x):
            try: return mmap.mmap(-1, 1 << 20) and 'LEAK anonymous'
            except OSError: pass
            try: return mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20) and 'LEAK zero'
            except OSError: pass
            open('/tmp/x', 'w').close()
            try: os.setxattr('/tmp/x', 'user.x', b'x' * 65000)
            except OSError: return 'blocked'
            return 'LEAK attribute'
        """,
    "a name that is no text": """
        import ctypes, time
        def solve(x):
            ctypes.CDLL(None).prctl(15, b'\\xff)\\xfe\\n', 0, 0, 0)
            time.sleep(0.2)
            return 'blocked'
        """,
    # -- staying alive
    "ignored signals": """
        import signal
        for number in range(1, 64):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def solve(x):
            while True: pass
        """,
    "daemon": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                time.sleep(300)
            os._exit(0)
        def solve(x): return 0
        """,
    "at exit": """
        import atexit, time
        atexit.register(time.sleep, 60)
        def solve(x): return 0
        """,
    "kill everyone": """
        import os, signal
        def solve(x):
            for pid in (-1, os.getppid(), os.getppid() - 1, 2):
                try: os.kill(pid or -1, signal.SIGKILL)
                except OSError: pass
            return 0
        """,
    # -- reaching out
    "network": """
        import socket, os
        def solve(x):
            for host in ('127.0.0.1', '1.1.1.1', '169.254.169.254', '10.0.0.1'):
                for port in (PORT, 53, 80):
                    try: socket.create_connection((host, port), 0.2)
                    except OSError: continue
                    return f'LEAK connected to {host}:{port}'
            return 'blocked'
        """,
    "abstract socket": """
        import socket
        def solve(x):
            try: socket.socket(socket.AF_UNIX).connect(chr(0) + 'winnowrl-test-ABSTRACT')
            except OSError: return 'blocked'
            return 'LEAK connected'
        """,
    "socket of the virtual machine": """
        import socket
        def solve(x):
            for domain in (40, 16, 17, 38):  # vsock, netlink, packet, alg
                try: socket.socket(domain, socket.SOCK_STREAM)
                except OSError:
                    try: socket.socket(domain, socket.SOCK_RAW)
                    except OSError: continue
                return f'LEAK domain {domain}'
            return 'blocked'
        """,
    "files of the machine": """
        def solve(x):
            for path in ('/etc/shadow', '/etc/passwd', '/etc/hostname', 'HOME/.bashrc', '/proc/self/environ', '/sys/kernel'):
                try: open(path).read()
                except OSError: continue
                return 'LEAK ' + path
            return 'blocked'
        """,
    "environment of the parent": """
        import os
        def solve(x):
            seen = dict(os.environ)
            for pid in ('self', '1', str(os.getppid())):
                try: seen['proc'] = open(f'/proc/{pid}/environ').read()
                except OSError: pass
            return 'LEAK' if 'SEALED' in str(seen) or 'proc' in seen else 'blocked'
        """,
    "symlink out": """
        import os
        def solve(x):
            for target in ('/etc', '/proc/1/root', '../../../../etc', 'WORKDIR'):
                try:
                    os.symlink(target, '/tmp/link')
                    found = os.listdir('/tmp/link')
                except OSError: found = None
                try: os.unlink('/tmp/link')
                except OSError: pass
                if found: return f'LEAK {target} {found[:3]}'
            return 'blocked'
        """,
    "write to mounts": """
        import os, sys
        def solve(x):
            for path in ('/', os.path.dirname(os.__file__), os.path.dirname(sys.executable), '/dev', '/lib'):
                try: open(os.path.join(path, 'planted'), 'w').write('x')
                except OSError: continue
                return 'LEAK wrote in ' + path
            for path in (os.__file__, sys.executable):
                try: open(path, 'ab').write(b'x')
                except OSError: continue
                return 'LEAK wrote to ' + path
            return 'blocked'
        """,
    "mount": """
        import ctypes
        def solve(x):
            libc = ctypes.CDLL(None)
            done = [libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.umount2(b'/tmp', 2), libc.chroot(b'/tmp'),
                    libc.mount(None, b'/', None, 4096 | 32, None)]
            return 'LEAK' if 0 in done else 'blocked'
        """,
    "new namespaces": """
        import ctypes
        def solve(x):
            libc = ctypes.CDLL(None)
            return 'LEAK' if any(libc.unshare(flag) == 0 for flag in (0x10000000, 0x20000, 0x40000000)) else 'blocked'
        """,
    "become root": """
        import os, ctypes
        def solve(x):
            for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.seteuid(0),
                         lambda: os.setresuid(0, 0, 0), lambda: os.chown('/tmp', 0, 0), lambda: os.mknod('/tmp/d', 0o60666)):
                try: call()
                except OSError: continue
                return 'LEAK'
            return 'LEAK root' if 0 in (os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()) else 'blocked'
        """,
    "set-user-id file": """
        import os, shutil, sys
        def solve(x):
            shutil.copy(sys.executable, '/tmp/python')
            os.chmod('/tmp/python', 0o6755)
            pid = os.fork()
            if pid == 0:
                os.execv('/tmp/python', ['python', '-c', 'import os; os._exit(99 if os.geteuid() == 0 else 1)'])
            return 'LEAK' if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 99 else 'blocked'
        """,
    "ptrace": """
        import ctypes, os
        def solve(x):
            libc = ctypes.CDLL(None)
            done = [libc.ptrace(0, 0, 0, 0), libc.ptrace(16, os.getppid() or 1, 0, 0)]
            buffer = ctypes.create_string_buffer(64)
            done.append(0 if libc.process_vm_readv(1, buffer, 1, buffer, 1, 0) > 0 else -1)
            return 'LEAK' if 0 in done else 'blocked'
        """,
    "keyring, io_uring, bpf": """
        import ctypes, platform
        def solve(x):
            libc = ctypes.CDLL(None)
            numbers = (250, 425, 321, 298) if platform.machine() == 'x86_64' else (219, 425, 280, 241)
            return 'LEAK' if any(libc.syscall(number, 0, 0, 0, 0, 0) >= 0 for number in numbers) else 'blocked'
        """,
    # -- forging the verdict
    "sys.exit": "import sys; sys.exit(0)",
    "sys.exit when called": "import sys\ndef solve(x): sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "os._exit when called": "import os\ndef solve(x): os._exit(0)",
    "printed pass": """
        def solve(x):
            print('OK\\n8 passed in 0.01s\\nRan 8 tests\\n{"passed": 8, "total": 8, "status": "passed"}')
            return None
        """,
    "forged findings on every descriptor": """
        import os, sys
        wire = sys.modules['winnowrl.envs.code.wire']
        refuse = lambda value: (b'o', 1, 'x')
        def solve(x):
            for message in [('check', n, True, '') for n in range(8)] + [('done', False)]:
                data = wire.encode(message, refuse)
                for fd in range(64):
                    try: os.write(fd, len(data).to_bytes(4, 'big') + data)
                    except OSError: pass
        """,
    "forged answers": """
        import sys
        channel = sys.modules['winnowrl.envs.code.channel']
        def perform(self, operation, arguments):
            return 'value', channel.Remote(self, 1, 'int')
        sys.modules['winnowrl.envs.code.candidate'].Candidate.perform = perform
        def solve(x): return 0
        """,
    "garbage on the channel": """
        import os
        def solve(x):
            for fd in range(3, 64):
                try: os.write(fd, b'\\x00\\x00\\x00\\x05l\\xff\\xff\\xff\\xff' * 100)
                except OSError: pass
        """,
    "closed descriptors": "import os\ndef solve(x): os.closerange(0, 64)",
    "patched unittest and builtins": """
        import builtins, unittest
        unittest.TestCase.assertEqual = lambda *a, **k: None
        unittest.TestCase.run = lambda *a, **k: None
        builtins.AssertionError = type('Calm', (Exception,), {})
        builtins.len = builtins.bool = lambda *a: True
        builtins.__build_class__ = None
        def solve(x): return 0
        """,
    "agreeable equality": """
        class Agreeable:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __contains__(self, other): return True
            def __bool__(self): return True
            def __hash__(self): return 1
            def __getattr__(self, name): return self
            def __call__(self, *args): return self
        def solve(x): return Agreeable()
        """,
    "agreeable integer": """
        class Agreeable(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __hash__ = int.__hash__
        def solve(x): return Agreeable(5)
        """,
    "agreeable string": """
        class Agreeable(str):
            __class__ = int
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __hash__ = str.__hash__
        def solve(x): return Agreeable('')
        """,
    "tests from the frames": """
        import sys, gc
        def solve(x):
            seen, frame = [], sys._getframe()
            while frame:
                seen += [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
                frame = frame.f_back
            for thing in seen + gc.get_objects():
                try: text = str(thing)
                except Exception: continue
                if SEALED() in text: return 'LEAK'
            return 'blocked'
        def SEALED(): return '-'.join(['k', '7f3a', 'sealed'])  # never written out, or the program would find itself
        """,
    "tests from the disk": """
        import os
        def solve(x):
            wanted = '-'.join(['k', '7f3a', 'sealed']).encode()
            for folder, _, names in os.walk('/'):
                if 'winnowrl' in folder: return 'LEAK ' + folder
                for name in names:
                    if name.endswith(('.jsonl', '.txt', '.json')) or folder.startswith('/tmp'):
                        try: data = open(os.path.join(folder, name), 'rb').read(1 << 20)
                        except OSError: continue
                        if wanted in data: return 'LEAK ' + name
            return 'blocked'
        """,
    "our package": """
        def solve(x):
            try: import winnowrl.envs.tasks, winnowrl.envs.code.runner
            except ImportError: return 'blocked'
            return 'LEAK'
        """,
    "stop iteration": "def solve(x): raise StopIteration",
    "stop iteration by a name that is an object": """
        class Name:
            def __str__(self): return 'StopIteration'
        class Meta(type):
            __name__ = property(lambda cls: Name())
        class Odd(Exception, metaclass=Meta): pass
        def solve(x): raise Odd
        """,
    "objects in place of what an answer is made of": """
        import sys
        class Any(str):
            __hash__ = str.__hash__
            def __eq__(self, other): return True
        class Name:
            def __str__(self): return 'StopIteration'
        turns = iter(range(10 ** 9))
        def perform(self, operation, arguments):
            odd = [('raise', [Name()], Name(), Name()), (Name(), 1), ('raise', [Name(), 'StopIteration'], 'x', 10 ** 5000),
                   ('value', None, Name()), ('raise', ['GeneratorExit'], Name(), -1), ('raise', Name(), 'x', 0)]
            return odd[next(turns) % len(odd)] if operation == 'call' else old(self, operation, arguments)
        Candidate = sys.modules['winnowrl.envs.code.candidate'].Candidate
        old, Candidate.perform = Candidate.perform, perform
        def solve(x): return 0
        """,
    "a line number too long to print": """
        import sys
        Candidate = sys.modules['winnowrl.envs.code.candidate'].Candidate
        Candidate.perform = lambda self, operation, arguments: ('raise', ['ValueError'], 'x', 10 ** 5000)
        def solve(x): return 0
        """,
    "assertion error": "class Calm(AssertionError, KeyboardInterrupt): pass\ndef solve(x): raise Calm",
    "deep answer": """
        def solve(x):
            value = []
            for _ in range(100000): value = [value]
            return value
        """,
    "cyclic answer": "def solve(x):\n    value = []\n    value.append(value)\n    return value",
    "huge answer": "def solve(x): return 'x' * (80 << 20)",
    "huge integer": "def solve(x): return 1 << (8 * 10 ** 6)",
    "endless iterator": "import itertools\ndef solve(x): return itertools.count()",
}


@pytest.fixture(scope="module", autouse=True)
def _sandbox() -> None:
    try:
        require_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def listeners() -> Iterator[int]:
    """A server on this machine and an abstract socket, both of which a program without a sandbox would reach."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0winnowrl-test-{os.getpid()}")
        abstract.listen()
        yield server.getsockname()[1]


def _strangers() -> set[int]:
    """Processes that a sandbox of this test could have left: children of ours, or sandboxed ones without a living owner.

    Sandboxed processes that hang below another process are those of another run on this machine.
    """
    parents: dict[int, int] = {}
    sandboxed: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                is_nobody = os.geteuid() == 0 and entry.stat().st_uid == NOBODY
                if is_nobody or "bwrap" in (entry / "comm").read_text():
                    sandboxed.add(int(entry.name))
            except (OSError, IndexError):
                continue

    def owner(process: int) -> int:
        while process in sandboxed:
            process = parents.get(process, 1)
        return process

    ours = {process for process, parent in parents.items() if parent == os.getpid()}
    return ours | {process for process in sandboxed if owner(process) in {1, *ours}}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_gains_nothing_and_leaves_nothing(
    name: str, listeners: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEALED_TOKEN", SECRET)
    (tmp_path / "tests.txt").write_text(SECRET)
    program = textwrap.dedent(ATTACKS[name]).replace("PORT", str(listeners)).replace("WORKDIR", str(tmp_path))
    program = program.replace("ABSTRACT", str(os.getpid())).replace("HOME/", f"{Path.home()}/")
    before, files = _strangers(), set(os.listdir(tempfile.gettempdir()))
    started = time.monotonic()
    result = run_tests(program, TESTS, "solve", SHORT)
    elapsed = time.monotonic() - started
    assert result.passed == 0, result
    assert result.total >= TOTAL
    assert result.status not in ("passed", "unsupported")
    assert "LEAK" not in repr(result)
    assert SECRET not in result.output
    assert elapsed < SHORT.wall_s + 10, "the sandbox's start is slow only on a machine under load"
    deadline = time.monotonic() + 2  # the fork that ran the tests ends itself
    while _strangers() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _strangers() - before
    planted = {
        entry for entry in set(os.listdir(tempfile.gettempdir())) - files if "planted" in entry or entry == "link"
    }
    assert not planted


HOARDERS = {
    "behind a first thread that has ended": """
        def hoard():
            import ctypes, threading
            def keep():
                time.sleep(0.2)
                kept = bytearray(b'x') * (40 << 20)
                time.sleep(30)
            threading.Thread(target=keep).start()
            ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
        """,
    "in sockets": """
        def hoard():
            kept = []
            try:
                while True: kept.append(socket.socketpair())
            except OSError: time.sleep(30)
        """,
    "in empty files": """
        def hoard():
            for number in range(40000): os.close(os.open(f'/tmp/{os.getpid()}-{number}', os.O_CREAT))
            time.sleep(30)
        """,
}


@pytest.mark.parametrize("where", HOARDERS)
def test_memory_is_seen_wherever_it_is_kept(where: str) -> None:
    # Four processes of an interpreter, about 10 MB each, and 40, 15 and 40 MB in each.
    program = "import os, socket, time\n" + textwrap.dedent(HOARDERS[where])
    program += (
        "def solve(x):\n    for _ in range(4):\n        if os.fork() == 0: hoard()\n    time.sleep(4)\n    return x\n"
    )
    limits = Limits(wall_s=20, cpu_s=20, memory_mb=96)
    result = run_tests(program, "assert solve(1) == 1", "solve", limits)
    assert (result.status, result.message) == ("memory", "used more than 96 MB")


def test_an_answer_cannot_make_the_tests_spend_more_memory_than_the_program_may() -> None:
    # Ten million integers take 400 MB as lists; the ranges themselves are small.
    program, tests = "def solve(x): return [range(250_000)] * 40", "assert len([list(part) for part in solve(1)]) == 40"
    assert run_tests(program, tests, "solve", Limits(memory_mb=128)).status == "failed"


@pytest.mark.parametrize(
    "made",
    [
        "range(10 ** 18)",
        "__import__('decimal').Decimal('1e999999999')",
        "__import__('fractions').Fraction(1, 3 ** 10 ** 6)",
    ],
)
def test_a_short_answer_cannot_make_the_tests_compute_for_long(made: str) -> None:
    # The first time by honest means; the second the program's side lets all of it through.
    for unchecked in ("", "import sys\nsys.modules['winnowrl.envs.code.wire'].excess_of = lambda *parts: ''\n"):
        program = f"{unchecked}def solve(x): return {made}"
        result = run_tests(
            program, "assert sum(1 for _ in [solve(1)]) and int(solve(1)) == 3", "solve", Limits(wall_s=5)
        )
        assert result.status == ("crashed" if unchecked else "failed")
        assert result.seconds < 5


@pytest.mark.parametrize("ignore", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "os.waitpid(child, 0)"])
def test_processor_time_of_ended_children_counts(ignore: str) -> None:
    program = f"""
import os, signal, time
def solve(x):
    for _ in range(8):
        child = os.fork()
        if child == 0:
            while time.process_time() < 0.4: pass
            os._exit(0)
        try: {ignore}
        except OSError: pass
        time.sleep(0.5)
    return x
"""
    result = run_tests(program, "assert solve(1) == 1", "solve", Limits(wall_s=60, cpu_s=1))
    assert (result.status, result.message) == ("timeout", "used more than 1 s of processor time")


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_others_that_are_gone_at_the_deadline_earn_no_time(kind: str) -> None:
    # While they run the first thread waits for a processor, which a program that is alone would get back.
    start = {
        "processes": "if os.fork() == 0:\n            burn()\n            os._exit(0)",
        "threads": "threading.Thread(target=burn).start()",
    }
    program = f"""
import hashlib, os, threading, time
end = time.monotonic() + 1.0
block = bytes(1 << 20)
def burn():
    while time.monotonic() < end: hashlib.sha256(block).digest()
def solve(x):
    for _ in range(10):
        {start[kind]}
    while time.monotonic() < end: hashlib.sha256(block).digest()
    while True:
        try: os.waitpid(-1, os.WNOHANG)
        except OSError: pass
"""
    result = run_tests(program, "assert solve(1) == 1", "solve", Limits(wall_s=1.5, cpu_s=30))
    assert (result.status, result.message, result.waited_s) == ("timeout", "ran longer than 1.5 s", 0.0)


def test_every_refused_system_call_is_refused() -> None:
    column = MACHINES[platform.machine()][0] if platform.machine() in MACHINES else None
    if column is None:
        pytest.skip(f"no filter for {platform.machine()}")
    calls = {name: numbers[column] for name, numbers in REFUSED.items() if numbers[column] is not None}
    program = """
import ctypes, errno
def solve(calls):
    libc = ctypes.CDLL(None, use_errno=True)
    return [name for name, number in calls.items() if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1]
"""
    result = run_tests(program, f"assert solve({calls!r}) == []", "solve")
    assert result.status == "passed", result.failures


def test_what_an_interpreter_needs_is_not_refused() -> None:
    program = """
import asyncio, concurrent.futures, mmap, multiprocessing, signal, subprocess, sys, tempfile, threading
def solve(x):
    async def twice(n):
        await asyncio.sleep(0.01)
        return await asyncio.to_thread(lambda: 2 * n)
    async def both():
        return await asyncio.gather(twice(x), twice(x + 1))
    found = asyncio.run(both())
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found += pool.map(abs, [-x])
    found.append(subprocess.run([sys.executable, '-S', '-c', 'print(5)'], capture_output=True, text=True).stdout)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context('fork').Process(target=lambda: theirs.send(7))
    child.start(); found.append(ours.recv()); child.join()
    with tempfile.TemporaryFile() as file:
        file.write(b'xyz'); file.flush()
        found.append(mmap.mmap(file.fileno(), 3)[:].decode())
    signal.signal(signal.SIGALRM, lambda *_: found.append('rung')); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
    return found
"""
    result = run_tests(program, "assert solve(3) == [6, 8, 3, '5\\n', 7, 'xyz', 'rung']", "solve")
    assert result.status == "passed", result.failures


def test_there_are_thirty_attacks_and_more() -> None:
    assert len(ATTACKS) >= 30


def test_an_honest_program_passes_the_same_tests() -> None:
    # The attacks fail because they are stopped, not because the tests cannot be passed.
    program = f"""
def solve(x):
    if isinstance(x, list):
        return {SECRET!r}
    return {{7: 555017, 11: 730023, 12: 730057}}.get(x, x + 8000017)
calls = 0
inner = solve
def solve(x):
    global calls
    calls += 1
    return 1729041 if calls == 1 else inner(x)
"""
    result = run_tests(program, TESTS, "solve")
    assert (result.passed, result.total, result.status) == (TOTAL, TOTAL, "passed")


# A program that does not know the answer, and tests by which it might pass all the same.
FORGERIES = {
    "length and members of two minds": (
        "import itertools\nclass L:\n    def __len__(self): return 3\n    def __iter__(self): return itertools.count()\n"
        "    def __contains__(self, x): return True\ndef f(n): return L()",
        "r = f(5)\nassert len(r) == 3 and all(p in r for p in [2, 3, 5])",
    ),
    "an iterator with a length": (
        "class L:\n    n = 0\n    def __len__(self): return 3\n    def __iter__(self): return self\n"
        "    def __next__(self): self.n += 1; return self.n\ndef f(n): return L()",
        "r = f(5)\nassert len(r) == 3 and all(p in r for p in [2, 3, 5])",
    ),
    "other items at every look": (
        "import itertools\nclass L:\n    looks = 0\n    def __iter__(self):\n        self.looks += 1\n"
        "        return iter('abc') if self.looks == 1 else itertools.count()\ndef f(n): return L()",
        "r = f(5)\nassert len(list(r)) == 3 and all(p in r for p in [2, 3, 5])",
    ),
    "another length at every look": (
        "class L:\n    looks = 0\n    def __len__(self): self.looks += 1; return 3 if self.looks == 1 else 100\n"
        "    def __iter__(self): return iter(range(100))\ndef f(n): return L()",
        "r = f(5)\nassert len(r) == 3 and all(p in r for p in [2, 3, 5])",
    ),
    "a list of two minds": (
        "class L(list):\n    def __len__(self): return 3\n    def __contains__(self, x): return True\n"
        "    def __eq__(self, other): return True\ndef f(n): return L()",
        "r = f(5)\nassert len(r) == 3\nassert r == [2, 3, 5]\nassert all(p in r for p in [2, 3, 5])",
    ),
    "a failure undone by `with`": (
        "class f:\n    def __enter__(self): return 1\n    def __exit__(self, *a): return True",
        "with f() as x:\n    assert x == 3",
    ),
    "a difference of nothing": (
        "class N:\n    def __sub__(self, o): return 0\n    __rsub__ = __abs__ = __sub__\n"
        "    __lt__ = __le__ = lambda s, o: True\ndef f(x): return N()",
        "import math\nassert abs(f(2) - 3.14) < 1e-6\nassert abs(3.14 - f(2)) < 1e-6\nassert f(1) < 3\n"
        "assert math.isclose(f(2), 3.14)",
    ),
    "an equality of its own": (
        "class N:\n    def __eq__(self, o): return True\n    __hash__ = lambda s: 1\ndef f(x): return N()",
        "assert f('listen') == f('silent')\nassert f(2) in (4, 5)\nassert [f(3)] == [9]",
    ),
    "its number as the difference": (
        "class N(float):\n    def __sub__(self, o): return 0.0\n    __rsub__ = __sub__\n    def __abs__(self): return 0.0\n"
        "    def __lt__(self, o): return True\ndef f(x): return N(9)",
        "assert abs(f(2) - 3.14) < 1e-6\nassert f(2) < 3\nassert f(2) == 3.14",
    ),
    "an exception class that catches failed asserts": (
        "Bad, Worse, Both = Exception, AssertionError, (Exception,)\ndef f(x): return x",
        "for kind in (Bad, Worse, Both):\n    try:\n        f(1)\n        assert False\n    except kind: pass",
    ),
    "an exception class that is all of them": (
        "class Meta(type):\n    __subclasscheck__ = __instancecheck__ = lambda *a: True\n"
        "class Bad(AssertionError, metaclass=Meta): pass\ndef f(x): return x",
        "import unittest\ntry:\n    f(1)\n    assert False\nexcept Bad: pass\nclass T(unittest.TestCase):\n"
        "    def test_a(self): self.assertRaises(Bad, f, 1)\n"
        "    def test_b(self):\n        with self.assertRaises(Bad): self.assertEqual(f(1), 2)",
    ),
    "an exception that skips": (
        "import unittest\ndef f(x): raise unittest.SkipTest('no')",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 2)",
    ),
    "an end of iteration by its own class": (
        "class E(StopIteration): pass\ndef f(x): raise E",
        "for got, wanted in zip(map(f, [1, 2]), [2, 4]):\n    assert got == wanted",
    ),
    "a class of exceptions that answers": (
        "import sys\nclass E(Exception): pass\nC = sys.modules['winnowrl.envs.code.candidate']\n"
        "C._mro = lambda kind: ['StopIteration', 'StopAsyncIteration', "
        "('builtins', 'StopIteration'), ('unittest.case', 'SkipTest'), kind]\n"
        "def f(x): raise E",
        "for got, wanted in zip(map(f, [1, 2]), [2, 4]):\n    assert got == wanted",
    ),
    "an end of iteration from a function of the tests": (
        "def f(g): return g()",
        "def g(): raise StopIteration\nassert all(got == wanted for got, wanted in zip(map(f, [g, g]), [2, 4]))",
    ),
    "the arguments as the answer": (
        "import sys\nC = sys.modules['winnowrl.envs.code.candidate'].Candidate\nW = sys.modules['winnowrl.envs.code.wire']\n"
        "def call(self, function, data):\n    d = W.Decoder(data, self.import_, self.max_bytes, shares=True); d.whole()\n"
        "    e = W.Encoder(self.export, self.max_bytes, known={id(x): n for n, x in enumerate(d.seen)}); e.put([d.seen[0]])\n"
        "    return 'value', bytes(e.out)\nC._call = call\ndef f(x): return x",
        "a = [3, 1, 2]\nr = f(a)\na.sort()\nassert r == a\nassert f(a)[0] is a",
    ),
    "arguments of another shape": (
        "import sys\nC = sys.modules['winnowrl.envs.code.candidate']\n"
        "C._contents = lambda c: [[1]] if isinstance(c, dict) else 5\n"
        "def f(x): pass",
        "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]\nd = {1: 2}\nf(d)\nassert d == {5: 6}",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_check_is_passed_without_its_answer(name: str) -> None:
    program, tests = FORGERIES[name]
    result = run_tests(program, tests, "f", Limits(wall_s=5))
    assert result.status != "passed"
    assert result.passed <= ("len(r) == 3\n" in tests)  # that alone can be guessed
