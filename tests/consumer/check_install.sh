#!/bin/bash
# Installs a build tree into a prefix of its own and uses it as other projects would:
#     check_install.sh BUILD_TREE CC VERSION LIBDIR
# Checks what is exported, names and modes of files, the CMake package and pkg-config.
set -euo pipefail

build=$1 cc=$2 version=$3 libdir=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$build/consumer/prefix
lib=$prefix/$libdir
backends=$lib/onehead/backends

fail() {
    echo "check_install: $*" >&2
    exit 1
}

exported() {
    nm -D --defined-only --format=posix "$1" | cut -d' ' -f1
}

rm -rf "$build/consumer"
# A group-writable umask: the modes of what is installed mustn't depend on it.
(umask 002 && cmake --install "$build" --prefix "$prefix" >/dev/null)

for file in libonehead.so "libonehead.so.${version%%.*}" "libonehead.so.$version"; do
    [[ -e $lib/$file ]] || fail "$lib/$file is missing"
done
soname=$(readelf -d "$lib/libonehead.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname == "libonehead.so.${version%%.*}" ]] || fail "SONAME is '$soname', expected libonehead.so.${version%%.*}"

others=$(exported "$lib/libonehead.so" | grep -v '^oh_' || true)
[[ -z $others ]] || fail "libonehead.so exports more than oh_*: $others"
declared=$(sed -n 's/^OH_API .*[ *]\(oh_[a-z0-9_]*\)(.*/\1/p' "$prefix"/include/onehead/*.h | sort)
[[ $(exported "$lib/libonehead.so" | sort) == "$declared" ]] ||
    fail "exports and OH_API declarations differ: $(diff <(exported "$lib/libonehead.so" | sort) <(echo "$declared"))"

for file in "$prefix/bin/onehead" "$lib/libonehead.so" "$backends"/onehead-*.so "$build"/bin/* "$build"/backends/*.so; do
    runpath=$(readelf -d "$file" 2>/dev/null | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]/\2/p')
    [[ :$runpath: == :: || :$runpath: != *::* ]] || fail "$file looks for libraries in the working directory: $runpath"
    [[ $file != "$prefix"/* || $runpath != *"$build"* ]] || fail "$file looks for libraries in the build tree: $runpath"
done

mode=$(stat -c %a "$backends")
[[ $mode == 755 ]] || fail "$backends has mode $mode, expected 755"
for plugin in "$backends"/onehead-*.so; do
    [[ $(exported "$plugin") == oh_backend_v1 ]] || fail "$plugin exports: $(exported "$plugin")"
    mode=$(stat -c %a "$plugin")
    [[ $mode == 644 ]] || fail "$plugin has mode $mode, expected 644"
done

unset ONEHEAD_BACKEND_PATH
cmake -S "$here" -B "$build/consumer/cmake" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" \
    -DONEHEAD_EXPECTED_VERSION="$version" >/dev/null
cmake --build "$build/consumer/cmake" >/dev/null
"$build/consumer/cmake/consumer" "$version"
# What is installed finds its own backends, wherever that is, before those of the build tree.
first=$("$prefix/bin/onehead" backends --json | sed -n 's/.*"path": "\(.*onehead-openblas.so\)".*/\1/p' | head -n 1)
[[ $first == "$backends/onehead-openblas.so" ]] || fail "the installed command looks for openblas in '$first' first"

export ONEHEAD_BACKEND_PATH=$backends PKG_CONFIG_PATH=$lib/pkgconfig
found=$(pkg-config --modversion onehead)
[[ $found == "$version" ]] || fail "pkg-config says version '$found', expected $version"
[[ $(realpath "$(pkg-config --variable=backenddir onehead)") == "$(realpath "$backends")" ]] ||
    fail "pkg-config's backenddir is $(pkg-config --variable=backenddir onehead), expected $backends"
read -ra flags < <(pkg-config --cflags --libs onehead)
"$cc" -std=c17 -O1 -o "$build/consumer/pkgconfig" "$here/consumer.c" "${flags[@]}" "-Wl,-rpath,$lib"
"$build/consumer/pkgconfig" "$version"

if [[ -d $build/man/man1 ]]; then
    for page in "$build"/man/man1/*.1; do
        cmp -s "$page" "$prefix/share/man/man1/${page##*/}" || fail "${page##*/} is not installed"
    done
fi

"$prefix/bin/onehead" plan --rows 64 --hidden 32 --vocab 1000 --json >/dev/null
echo "onehead $version installs and serves a CMake and a pkg-config project"
