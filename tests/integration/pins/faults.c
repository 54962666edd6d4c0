// Makes real calls fail. Preloaded into a process; before each call it reads the file that $FAULTS names:
// "CALL ERRNO SUFFIX", as in "fsync 5 -wal": let CALL fail with ERRNO on files whose path ends in SUFFIX ("*": on all).
// An empty or missing file lets everything pass.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int ends_with(const char *path, const char *suffix) {
  size_t p = strlen(path), s = strlen(suffix);
  return strcmp(suffix, "*") == 0 || (p >= s && strcmp(path + p - s, suffix) == 0);
}

// The errno that this call must fail with, 0: none. Raw system calls only, so that we never meet ourselves.
static int fault(const char *call, const char *path) {
  char text[256], wanted[64], suffix[128];
  int number, file = syscall(SYS_openat, AT_FDCWD, getenv("FAULTS"), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t size = syscall(SYS_read, file, text, sizeof text - 1);
  syscall(SYS_close, file);
  if (size <= 0) return 0;
  text[size] = 0;
  if (sscanf(text, "%63s %d %127s", wanted, &number, suffix) != 3) return 0;
  return strcmp(wanted, call) == 0 && ends_with(path, suffix) ? number : 0;
}

static int fault_of(const char *call, int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return path[0] == '/' ? fault(call, path) : 0;  // not pipes and sockets
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(number) do { int found = (number); if (found) { errno = found; return -1; } } while (0)

ssize_t write(int f, const void *b, size_t n) { FAIL(fault_of("write", f)); return REAL(write)(f, b, n); }
ssize_t pwrite(int f, const void *b, size_t n, off_t o) { FAIL(fault_of("write", f)); return REAL(pwrite)(f, b, n, o); }
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o) { FAIL(fault_of("write", f)); return REAL(pwrite64)(f, b, n, o); }
ssize_t read(int f, void *b, size_t n) { FAIL(fault_of("read", f)); return REAL(read)(f, b, n); }
ssize_t pread64(int f, void *b, size_t n, off64_t o) { FAIL(fault_of("read", f)); return REAL(pread64)(f, b, n, o); }
int fsync(int f) { FAIL(fault_of("fsync", f)); return REAL(fsync)(f); }
int fdatasync(int f) { FAIL(fault_of("fsync", f)); return REAL(fdatasync)(f); }
int ftruncate(int f, off_t n) { FAIL(fault_of("ftruncate", f)); return REAL(ftruncate)(f, n); }
int ftruncate64(int f, off64_t n) { FAIL(fault_of("ftruncate", f)); return REAL(ftruncate64)(f, n); }
int rename(const char *o, const char *n) { FAIL(fault("rename", n)); return REAL(rename)(o, n); }
int renameat(int d, const char *o, int e, const char *n) { FAIL(fault("rename", n)); return REAL(renameat)(d, o, e, n); }
