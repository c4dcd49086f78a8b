// What programs built with a newer C library find in none as old as glibc 2.28, for scripts/bundle_glibc: it
// leaves these functions without a version of glibc's in the programs of a bundle, and names this library
// first in what they load. Where the machine's C library has the function itself, and it is more than a
// system call, that one is called.
//
// Its own functions have a version of their own (bundle_glibc.map), so that nobody else's calls come here.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

// As the oldest glibc for x86-64 had them, and all have.
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");

// A function of the machine's C library, looked for once; null where it has none. Threads that look at once
// find the same. The test takes them for missing (CP_NONE_OF_THE_SYSTEM), so that what stands in for them
// runs where they are there.
#ifdef CP_NONE_OF_THE_SYSTEM
#define OF_THE_SYSTEM(type, name) \
  static type system_##name(void) { return NULL; }
#else
#define OF_THE_SYSTEM(type, name)                          \
  static type system_##name(void) {                        \
    static void* found;                                    \
    void* now = __atomic_load_n(&found, __ATOMIC_ACQUIRE); \
    if (now == NULL) {                                     \
      now = dlsym(RTLD_NEXT, #name);                       \
      if (now == NULL) now = (void*)-1;                    \
      __atomic_store_n(&found, now, __ATOMIC_RELEASE);     \
    }                                                      \
    return now == (void*)-1 ? NULL : (type)now;            \
  }
#endif

// Since 2.34 the C library runs a program's constructors; before that, code that the linker put into each
// program did. A program of the new kind brings none, so this runs them, as the old code would have. (Those
// of DT_PREINIT_ARRAY are the loader's in all versions.)
typedef void (*Constructor)(int, char**, char**);
extern int old_start(int (*main)(int, char**, char**), int argc, char** argv, Constructor init,
                     void (*fini)(void), void (*rtld_fini)(void), void* stack_end);
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");

static void run_constructors(int argc, char** argv, char** env) {
  const struct link_map* program = _r_debug.r_map;  // the first is the program
  const Constructor* all = NULL;
  size_t all_bytes = 0;
  ElfW(Addr) init = 0;
  for (const ElfW(Dyn)* entry = program->l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_INIT:
        init = program->l_addr + entry->d_un.d_ptr;
        break;
      case DT_INIT_ARRAY:
        all = (const Constructor*)(program->l_addr + entry->d_un.d_ptr);
        break;
      case DT_INIT_ARRAYSZ:
        all_bytes = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (init != 0) ((void (*)(void))init)();
  for (size_t i = 0; i < all_bytes / sizeof *all; ++i) all[i](argc, argv, env);
}

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, Constructor init,
                      void (*fini)(void), void (*rtld_fini)(void), void* stack_end) {
  return old_start(main, argc, argv, init != NULL ? init : run_constructors, fini, rtld_fini, stack_end);
}

// 2.32. Nobody sets it: threads may be there.
char __libc_single_threaded = 0;

// 2.30. The system's, or a wait for the time that is left by the clock that every glibc waits by. Where that
// clock is set while it waits, it wakes early or late; callers look again whether what they wait for has
// come.
typedef int (*CondClockWait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
OF_THE_SYSTEM(CondClockWait, pthread_cond_clockwait)
int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  const CondClockWait wait = system_pthread_cond_clockwait();
  if (wait != NULL) return wait(cond, mutex, clock, until);
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(cond, mutex, until);
  struct timespec now, end;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += until->tv_sec - now.tv_sec;
  end.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (end.tv_nsec >= 1000000000) end.tv_nsec -= 1000000000, ++end.tv_sec;
  if (end.tv_nsec < 0) end.tv_nsec += 1000000000, --end.tv_sec;
  return pthread_cond_timedwait(cond, mutex, &end);
}

// Version 2.3.3 of it is all that there was until 2.34.
extern int old_setclock(pthread_condattr_t*, clockid_t);
__asm__(".symver old_setclock, pthread_condattr_setclock@GLIBC_2.3.3");
int pthread_condattr_setclock(pthread_condattr_t* attributes, clockid_t clock) {
  return old_setclock(attributes, clock);
}

// 2.35, of the unwinder in libgcc_s: in which object the code lies, and where its table of frames is.
typedef int (*FindObject)(void*, struct dl_find_object*);
OF_THE_SYSTEM(FindObject, _dl_find_object)

struct Search {
  ElfW(Addr) code;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const struct Search* search = data;
  ElfW(Addr) begin = (ElfW(Addr)) - 1, end = 0, frames = 0;
  int here = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const ElfW(Addr) at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) frames = at;
    if (part->p_type != PT_LOAD) continue;
    if (at < begin) begin = at;
    if (at + part->p_memsz > end) end = at + part->p_memsz;
    if (search->code >= at && search->code < at + part->p_memsz) here = 1;
  }
  if (!here) return 0;
  search->found->dlfo_flags = 0;
  search->found->dlfo_map_start = (void*)begin;
  search->found->dlfo_map_end = (void*)end;
  search->found->dlfo_link_map = NULL;  // which the unwinder does not read
  search->found->dlfo_eh_frame = (void*)frames;
  return frames != 0 ? 1 : -1;
}

int _dl_find_object(void* code, struct dl_find_object* found) {
  const FindObject find = system__dl_find_object();
  if (find != NULL) return find(code, found);
  struct Search search = {(ElfW(Addr))code, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

// 2.36, of std::random_device.
unsigned arc4random(void) {
  unsigned bits = 0;
  while (syscall(SYS_getrandom, &bits, sizeof bits, 0) != (long)sizeof bits) {
  }
  return bits;
}

// 2.33: before that they were no functions of the library's. The kernel's structure is glibc's.
int stat(const char* path, struct stat* result) { return (int)syscall(SYS_stat, path, result); }
int lstat(const char* path, struct stat* result) { return (int)syscall(SYS_lstat, path, result); }
int fstat(int file, struct stat* result) { return (int)syscall(SYS_fstat, file, result); }
int fstat64(int file, struct stat64* result) { return (int)syscall(SYS_fstat, file, result); }

// 2.30 and 2.34: the system calls. An older kernel says ENOSYS to the second, as callers expect.
ssize_t getdents64(int file, void* buffer, size_t bytes) {
  return syscall(SYS_getdents64, file, buffer, bytes);
}
int close_range(unsigned first, unsigned last, int flags) { return (int)syscall(436, first, last, flags); }

// 2.32: "SEGV" of SIGSEGV.
const char* sigabbrev_np(int number) {
  static const char* const names[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",       [SIGQUIT] = "QUIT", [SIGILL] = "ILL",
      [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",   [SIGFPE] = "FPE",
      [SIGKILL] = "KILL", [SIGUSR1] = "USR1",     [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
      [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",     [SIGTERM] = "TERM", [SIGSTKFLT] = "STKFLT",
      [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",     [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
      [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",     [SIGURG] = "URG",   [SIGXCPU] = "XCPU",
      [SIGXFSZ] = "XFSZ", [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH",
      [SIGPOLL] = "POLL", [SIGPWR] = "PWR",       [SIGSYS] = "SYS",
  };
  return number > 0 && (size_t)number < sizeof names / sizeof *names ? names[number] : NULL;
}
