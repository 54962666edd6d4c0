"""Files and directories that are ours alone (§5 and §13 of the contract).

Everything is opened by the handle of its directory, never through a link, and judged by what the open descriptor says:
between the check and the use there is no moment in which another file could take the place. What is not safe is an
`UnsafeState` that says what is wrong and what an operator can do; nothing is ever repaired, because a repair of
somebody else's file is an attack's last step. The messages are for the operator at start and name paths.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeAlias

from tidegate_server.errors import UnsafeState

FileSystemOf: TypeAlias = Callable[[int], str]
"""Names the type of the file system that an open descriptor lies on; "" when the machine does not tell."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: to open a named pipe must not hang the start. It means nothing for a regular file.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LARGEST_SMALL_FILE = 1 << 20

# Locks and shared memory of these do not hold, or not between machines; a database on them is lost sooner or later.
# fmt: off
_REMOTE = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "fuse", "fuseblk", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "webdav",
))
# fmt: on

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISREG, "a regular file"),
)


def unsafe(path: Path, fault: str, remedy: str) -> UnsafeState:
    """The error for an operator: where, what is wrong, what to do about it."""
    return UnsafeState(f"{path}: {fault}. {remedy} Nothing was changed.")


def file_system_of(descriptor: int) -> str:
    """The type of the file system as the kernel's mount table names it, "" where there is none (not Linux)."""
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
        mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.split(" ", 1)[0] == mount:
                return line.partition(" - ")[2].split(" ", 1)[0]
    except (OSError, StopIteration):
        pass
    return ""


class OwnedDirectory:
    """A directory of mode 0700 that belongs to us, held by its handle until `close`.

    `path` is free of symbolic links, for messages and for libraries that take nothing but a path.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._locks: list[int] = []

    @classmethod
    def open(cls, path: Path, *, make: bool = True) -> Self:
        """Open `path`, or make it (parents, too) when it is missing and `make`. UnsafeState unless it is ours alone.

        Links among the parents are the operator's own choice and are followed once; the last component may be none.
        No parent may be writable by everybody, unless it is sticky as /tmp is.
        """
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link that must be refused
        parent = absolute.parent.resolve()
        if make:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for ancestor in (parent, *parent.parents):
            mode = _stat_of(ancestor).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise unsafe(
                    ancestor,
                    f"every user may write to it ({_octal(mode)}), and so replace {absolute} by something else",
                    "Take that right away (chmod o-w), or choose another state directory.",
                )
        with _opened(parent) as handle:
            return cls._open_in(handle, parent / absolute.name, make=make)

    def subdirectory(self, name: str, *, make: bool = True) -> Self:
        """The same for a directory in this one."""
        return self._open_in(self.descriptor, self.path / name, make=make)

    @classmethod
    def _open_in(cls, parent: int, path: Path, *, make: bool) -> Self:
        made = False
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path.name, 0o700, dir_fd=parent)
                os.fsync(parent)
                made = True
        try:
            descriptor = os.open(path.name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise _cannot_open(path, parent, error, directory=True) from error
        try:
            if made:
                os.fchmod(descriptor, 0o700)  # whatever the umask took away
            _check(path, os.fstat(descriptor), directory=True)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def refuse_remote(self, file_system: FileSystemOf = file_system_of) -> None:
        """UnsafeState when the directory lies on a network or FUSE file system."""
        kind = file_system(self.descriptor)
        if kind in _REMOTE or kind.startswith("fuse."):
            raise unsafe(
                self.path,
                f"it lies on a file system of type {kind}, which cannot keep the promises of a database",
                "Choose a state directory on a local disk, or the shared mode (`stores`).",
            )

    def check_entries(self, files: Collection[str] = ()) -> None:
        """UnsafeState unless everything in here is ours alone: directories and files, and under `files` only files."""
        for name in sorted(os.listdir(self.descriptor)):  # noqa: PTH208 - by the handle, not by a path
            info = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            _check(self.path / name, info, directory=stat.S_ISDIR(info.st_mode) and name not in files)

    def lock(self, name: str = "lock") -> None:
        """Keep other processes out until `close`; the kernel lets go when this process dies, however it dies."""
        descriptor = self.open_file(name, make=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise unsafe(
                self.path,
                "another process has it in use",
                "Stop that process first; two servers need two state directories, or the shared mode (`stores`).",
            ) from error
        self._locks.append(descriptor)

    def exists(self, name: str) -> bool:
        """Whether there is an entry of that name, of whatever kind."""
        return self.identity(name) is not None

    def identity(self, name: str) -> tuple[int, int] | None:
        """Which file bears the name now: device and inode. None: no file does. Cheap: one system call."""
        try:
            info = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return info.st_dev, info.st_ino

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def open_file(self, name: str, *, writable: bool = True, make: bool = False) -> int:
        """A descriptor of a file that is ours alone, else UnsafeState. With `make` it is made, empty, when missing."""
        path = self.path / name
        flags = _FILE | (os.O_RDWR if writable else os.O_RDONLY)
        made = False
        if make:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(name, _FILE | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.descriptor))
                os.fsync(self.descriptor)
                made = True
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            raise _cannot_open(path, self.descriptor, error, directory=False) from error
        try:
            if made:
                os.fchmod(descriptor, 0o600)
            _check(path, os.fstat(descriptor), directory=False)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read_file(self, name: str) -> bytes:
        """The content of a small file that is ours alone, else UnsafeState."""
        descriptor = self.open_file(name, writable=False)
        try:
            return os.read(descriptor, _LARGEST_SMALL_FILE)
        finally:
            os.close(descriptor)

    def write_file(self, name: str, content: bytes, *, replace: bool = False) -> None:
        """Put a file of mode 0600 there, whole and durable or not at all. OSError when the disk does not take it."""
        draft = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=self.descriptor)  # of a process that died in here
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600, dir_fd=self.descriptor)
        try:
            os.fchmod(descriptor, 0o600)
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not replace and self.exists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self.rename(draft, name)

    def rename(self, old: str, new: str) -> None:
        """Give a file of this directory another name, durably."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        os.fsync(self.descriptor)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that hold nothing yet. A missing one is no error."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Let go of the locks and of the handle. A second call does nothing."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FileWatch:
    """Tells whether a directory and files in it are still those that were opened, by the names they were opened under.

    Somebody who replaces a file by renaming another over it leaves us writing to a file that nobody will ever find
    again; only the name tells. `files` says which file, by device and inode, each name led to.
    """

    def __init__(self, directory: OwnedDirectory, names: Iterable[str]) -> None:
        self._directory = directory
        self._home = _identity(os.fstat(directory.descriptor))
        self.files = {name: directory.identity(name) for name in names}

    def unchanged(self) -> bool:
        """Whether each name still leads to the file that it led to. A few system calls; never raises."""
        try:
            return _identity(self._directory.path.stat(follow_symlinks=False)) == self._home and all(
                self._directory.identity(name) == identity for name, identity in self.files.items()
            )
        except OSError:
            return False


def held_files() -> Counter[tuple[int, int]]:
    """How often this process has each file open, by device and inode: what a library really opened."""
    held: Counter[tuple[int, int]] = Counter()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - the names are wanted
        with contextlib.suppress(OSError, ValueError):
            held[_identity(os.fstat(int(name)))] += 1
    return held


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything; a disk that takes a part is asked again and then says why it does not take the rest."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def check_private_file(path: Path, info: os.stat_result) -> None:
    """UnsafeState unless the descriptor that `info` tells about is a regular file that is ours alone."""
    _check(path, info, directory=False)


def _check(path: Path, info: os.stat_result, *, directory: bool) -> None:
    kind = next((words for test, words in _KINDS if test(info.st_mode)), "of an unknown kind")
    wanted = "a directory" if directory else "a regular file"
    if kind != wanted:
        raise unsafe(path, f"it is {kind}, where {wanted} of ours must be", "Find out who put it there, and remove it.")
    if info.st_uid != os.geteuid():
        raise unsafe(
            path,
            f"it belongs to user {info.st_uid}, and this server runs as user {os.geteuid()}",
            "Run the server as its owner; if it is yours, chown it.",
        )
    if info.st_mode & 0o077:
        mode = "700" if directory else "600"
        raise unsafe(
            path,
            f"its mode {_octal(info.st_mode)} lets other users in",
            f"Make sure that nobody changed or copied it, then chmod {mode} it.",
        )
    if not directory and info.st_nlink != 1:
        raise unsafe(
            path,
            f"it has {info.st_nlink} hard links, so it can be changed under another name",
            "Remove the others (find / -samefile shows them).",
        )


def _cannot_open(path: Path, parent: int, error: OSError, *, directory: bool) -> UnsafeState:
    """Why: for something that is not what it should be its kind tells more than the error does."""
    with contextlib.suppress(OSError):
        info = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        try:
            _check(path, info, directory=directory)
        except UnsafeState as fault:
            return fault
    return unsafe(path, f"it cannot be opened ({error.strerror})", "Find out why, and start the server again.")


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unsafe(directory, f"it cannot be opened ({error.strerror})", "Find out why, and try again.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _stat_of(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise unsafe(path, f"it cannot be read ({error.strerror})", "Make it, or give the server access.") from error


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _octal(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"
