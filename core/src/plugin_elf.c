/* What can be told from the bytes of a plugin before any of its code runs. dlopen would refuse most of this too, in
 * worse words; two things it doesn't survive: a file cut short (the process dies of SIGBUS when a missing page is
 * touched) and a second sanitizer runtime (which ends the process while it starts). */
#define _GNU_SOURCE /* pread */
#include "loader.h"

#include "status.h"

#include <elf.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#elif defined(__riscv)
#define OWN_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define OWN_MACHINE EM_PPC64
#else
#define OWN_MACHINE EM_NONE /* not known here: dlopen judges */
#endif

typedef struct sanitizer_runtime {
    const char *library;   /* how the library's name begins */
    const char *sanitizer; /* the core's own must contain this word */
} sanitizer_runtime;

static const sanitizer_runtime runtimes[] = {
    {"libasan.", "address"},        {"libclang_rt.asan", "address"},
    {"libtsan.", "thread"},         {"libclang_rt.tsan", "thread"},
    {"liblsan.", "leak"},           {"libhwasan.", "hwaddress"},
    {"libclang_rt.msan", "memory"}, {"libclang_rt.hwasan", "hwaddress"},
};

static int read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    if (offset > INT64_MAX) return 0;
    return pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static oh_status check_header(const Elf64_Ehdr *header, oh_error *error) {
    const unsigned char *ident = header->e_ident;
    if (memcmp(ident, ELFMAG, SELFMAG) != 0)
        return oh_fail(error, OH_NO_BACKEND,
                       "is not an ELF file (begins with %02x %02x %02x %02x), wanted a shared object", ident[0],
                       ident[1], ident[2], ident[3]);
    if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB)
        return oh_fail(error, OH_NO_BACKEND, "is a %s-bit %s-endian ELF file, wanted 64-bit little-endian",
                       ident[EI_CLASS] == ELFCLASS64 ? "64" : "32", ident[EI_DATA] == ELFDATA2LSB ? "little" : "big");
    if (OWN_MACHINE != EM_NONE && header->e_machine != OWN_MACHINE)
        return oh_fail(error, OH_NO_BACKEND, "is built for ELF machine %u, wanted this one's, %d", header->e_machine,
                       OWN_MACHINE);
    if (header->e_type != ET_DYN)
        return oh_fail(error, OH_NO_BACKEND, "is an ELF file of type %u, wanted a shared object (%d)", header->e_type,
                       ET_DYN);
    if (header->e_phnum == 0 || header->e_phentsize != sizeof(Elf64_Phdr))
        return oh_fail(error, OH_NO_BACKEND, "has %u program headers of %u bytes, wanted at least one of %zu",
                       header->e_phnum, header->e_phentsize, sizeof(Elf64_Phdr));
    return OH_OK;
}

static int read_segment(int fd, const Elf64_Ehdr *header, unsigned i, Elf64_Phdr *segment) {
    const uint64_t offset = (uint64_t)i * sizeof *segment;
    if (header->e_phoff > INT64_MAX) return 0;
    return read_at(fd, segment, sizeof *segment, header->e_phoff + offset);
}

static oh_status check_segments(int fd, const Elf64_Ehdr *header, uint64_t size, oh_error *error) {
    for (unsigned i = 0; i < header->e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!read_segment(fd, header, i, &segment))
            return oh_fail(error, OH_NO_BACKEND, "is cut short: no program header %u of %u in its %llu bytes", i,
                           header->e_phnum, (unsigned long long)size);
        if (segment.p_type != PT_LOAD) continue;
        if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset)
            return oh_fail(error, OH_NO_BACKEND, "is cut short: segment %u has %llu bytes at %llu, the file has %llu",
                           i, (unsigned long long)segment.p_filesz, (unsigned long long)segment.p_offset,
                           (unsigned long long)size);
    }
    return OH_OK;
}

/* Where the byte at `address` of the loaded object is in the file. */
static int file_offset(int fd, const Elf64_Ehdr *header, uint64_t address, uint64_t *offset) {
    for (unsigned i = 0; i < header->e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!read_segment(fd, header, i, &segment)) return 0;
        if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
        if (address - segment.p_vaddr >= segment.p_filesz) continue;
        *offset = segment.p_offset + (address - segment.p_vaddr);
        return 1;
    }
    return 0;
}

static oh_status check_library(const char *library, oh_error *error) {
    for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; ++i) {
        const sanitizer_runtime *runtime = &runtimes[i];
        if (strncmp(library, runtime->library, strlen(runtime->library)) != 0) continue;
        if (strstr(oh_sanitizer(), runtime->sanitizer) != NULL) continue;
        return oh_fail(error, OH_NO_BACKEND, "needs %s: built with sanitizer \"%s\", wanted the core's own, \"%s\"",
                       library, runtime->sanitizer, oh_sanitizer());
    }
    return OH_OK;
}

/* The libraries it names. What can't be followed is left to dlopen. */
static oh_status check_needed(int fd, const Elf64_Ehdr *header, const Elf64_Phdr *dynamic, oh_error *error) {
    const uint64_t count = dynamic->p_filesz / sizeof(Elf64_Dyn);
    uint64_t names = 0;
    Elf64_Dyn entry;
    for (uint64_t i = 0; i < count; ++i) {
        if (!read_at(fd, &entry, sizeof entry, dynamic->p_offset + i * sizeof entry)) return OH_OK;
        if (entry.d_tag == DT_NULL) break;
        if (entry.d_tag == DT_STRTAB && !file_offset(fd, header, entry.d_un.d_ptr, &names)) return OH_OK;
    }
    if (names == 0) return OH_OK;
    for (uint64_t i = 0; i < count; ++i) {
        char library[64] = "";
        if (!read_at(fd, &entry, sizeof entry, dynamic->p_offset + i * sizeof entry)) return OH_OK;
        if (entry.d_tag == DT_NULL) break;
        if (entry.d_tag != DT_NEEDED || entry.d_un.d_val > INT64_MAX - names) continue;
        if (pread(fd, library, sizeof library - 1, (off_t)(names + entry.d_un.d_val)) <= 0) continue;
        const oh_status status = check_library(library, error);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

oh_status oh_plugin_elf_check(int fd, int64_t size, oh_error *error) {
    Elf64_Ehdr header;
    if (size < (int64_t)sizeof header)
        return oh_fail(error, OH_NO_BACKEND, "is not an ELF file (%lld bytes), wanted a shared object",
                       (long long)size);
    if (!read_at(fd, &header, sizeof header, 0)) return oh_fail(error, OH_IO, "can't read its header");
    oh_status status = check_header(&header, error);
    if (status == OH_OK) status = check_segments(fd, &header, (uint64_t)size, error);
    for (unsigned i = 0; status == OH_OK && i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!read_segment(fd, &header, i, &segment)) break;
        if (segment.p_type == PT_DYNAMIC) status = check_needed(fd, &header, &segment, error);
    }
    return status;
}
