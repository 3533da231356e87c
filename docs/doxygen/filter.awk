# What Doxygen reads in place of a header: plain comments become its own kind, so that the headers stay free of tags.
#
# A comment in front of a declaration documents it, one behind it on its line too. Declarations without a blank line
# between them share the comment of the first. Dividers ("---- plan ----") document nothing.

function name_of(line,    words, count) {
    if (match(line, /^#define [A-Za-z0-9_]+/)) return substr(line, 9, RLENGTH - 8)
    if (match(line, /\(\*[a-z0-9_]+\)/)) return substr(line, RSTART + 2, RLENGTH - 3)
    sub(/[(;].*/, "", line)
    count = split(line, words, /[ *]+/)
    return words[count]
}

/^ *\/\* -{4,}/ { next }

/^$/ { first = ""; documented = 0 }

NR == 1 { sub(/^\/\* [a-z]+\.h - /, "/** @file\n * ") }

{ gsub(/<name>/, "NAME") }

/^ *\/\* / { sub(/\/\* /, "/** "); documented = 1; print; next }

/^(OH_API|OH_ROW|#define OH_|typedef .*\);$)/ {
    if (first == "") first = name_of($0)
    else if (!documented && !/\/\* / && name_of($0) != first) print "/** @copydoc " first " */"
    documented = 0
}

{ sub(/\/\* /, "/**< "); print }
