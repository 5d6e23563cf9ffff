/* Stands in for file systems that lack some calls. LD_PRELOAD puts it before libc; `fail` says which call fails, and with
 * which error, or with 0 that it works. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(error) do { if (error) { errno = (error); return -1; } } while (0)

enum { FLOCK, SYNC_FOLDER, OPEN_FOLDER, SYNC_FILE, REPLACE, MAP_SHARE, MAP_ANY, NO_NAMES, CALLS };
static const char *const names[CALLS] = {
    "flock", "sync_folder", "open_folder", "sync_file", "replace", "map_shared", "map", "count_names",
};
static int errors[CALLS];

int fail(const char *call, int error) {
    for (int number = 0; number < CALLS; number++)
        if (!strcmp(call, names[number])) { errors[number] = error; return 1; }
    return 0;
}

int flock(int file, int operation) {
    FAIL_IF(errors[FLOCK]);
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(file, operation);
}

static int sync_error(int file) {
    struct stat status;
    return fstat(file, &status) ? 0 : errors[S_ISDIR(status.st_mode) ? SYNC_FOLDER : SYNC_FILE];
}

int fsync(int file) {
    FAIL_IF(sync_error(file));
    return NEXT(fsync)(file);
}

int fdatasync(int file) {
    FAIL_IF(sync_error(file));
    return NEXT(fdatasync)(file);
}

static int open_error(const char *path, int flags) {
    struct stat status;
    return !(flags & O_DIRECTORY) && !stat(path, &status) && S_ISDIR(status.st_mode) ? errors[OPEN_FOLDER] : 0;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        FAIL_IF(open_error(path, flags)); \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to) {
    if (errors[REPLACE] && !access(to, F_OK)) { errno = errors[REPLACE]; return -1; }
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}

static void *map(void *at, size_t length, int protection, int flags, int file, off_t offset) {
    int error = file < 0 ? 0 : errors[MAP_ANY] ? errors[MAP_ANY] : flags & MAP_SHARED ? errors[MAP_SHARE] : 0;
    if (error) { errno = error; return MAP_FAILED; }
    return (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) {
    return map(at, length, protection, flags, file, offset);
}

void *mmap64(void *at, size_t length, int protection, int flags, int file, off64_t offset) {
    return map(at, length, protection, flags, file, offset);
}

int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *found) {
    int result = ((int (*)(int, const char *, int, unsigned int, struct statx *))dlsym(RTLD_NEXT, "statx"))(
        folder, path, flags, mask, found);
    if (!result && errors[NO_NAMES]) found->stx_nlink = 0;
    return result;
}
