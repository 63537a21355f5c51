// Linked into prebuilt libraries alone, so that one that is linked on a new system loads on an old one: functions that a
// newer glibc moved or versioned anew are bound to the versions that every glibc for this processor has. The linker's
// --wrap sends the calls of the kernels and of the static libstdc++ here; the manifest lists the names.
#include <pthread.h>

// The version of glibc that the processor was first supported in.
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "the first versions of glibc's symbols differ on other processors"
#endif

#define OF_OLD_GLIBC(result, name, parameters, arguments)   \
  __asm__(".symver old_" #name "," #name "@" FIRST_GLIBC); \
  extern "C" result old_##name parameters;                 \
  extern "C" result __wrap_##name parameters { return old_##name arguments; }

// In libpthread until glibc 2.34, which Bun has loaded on those systems.
OF_OLD_GLIBC(int, pthread_create, (pthread_t* a, const pthread_attr_t* b, void* (*c)(void*), void* d), (a, b, c, d))
OF_OLD_GLIBC(int, pthread_join, (pthread_t a, void** b), (a, b))
OF_OLD_GLIBC(int, pthread_detach, (pthread_t a), (a))
OF_OLD_GLIBC(int, pthread_once, (pthread_once_t* a, void (*b)()), (a, b))
OF_OLD_GLIBC(int, pthread_key_create, (pthread_key_t* a, void (*b)(void*)), (a, b))
OF_OLD_GLIBC(int, pthread_key_delete, (pthread_key_t a), (a))
OF_OLD_GLIBC(void*, pthread_getspecific, (pthread_key_t a), (a))
OF_OLD_GLIBC(int, pthread_setspecific, (pthread_key_t a, const void* b), (a, b))
// glibc 2.27 and 2.29 left out wrappers that set errno, which nobody reads here.
OF_OLD_GLIBC(double, exp, (double a), (a))
OF_OLD_GLIBC(float, log2f, (float a), (a))

// A hint of glibc 2.32 to libstdc++ that only one thread runs: here it is never given.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
