# What all lists of mutants need; sourced by the scripts mutants.sh, which say
#
#   folder    of the sources that mistakes are made in
#   target    that holds them, as ninja knows it
#   program   that is linked anew with a mutant in front, relative to the build
#   judge PROGRAM   runs a mutant and says in $verdict how it was caught; fails where it was not
#
# or give try_all a list that says it mutant by mutant.
#
# How a file is compiled and the program linked is asked of ninja, so that it stays true whatever
# the flags are.

# compile FILE OBJECT: as the build compiles the original, warnings apart; what it compiles for
# several instruction sets, for each of them. A header of kernels is compiled with the op's
# kernels, which must find this one first.
compile() {
    local command unit units=("$1") objects=()
    case "$1" in *.cuh) units=("$source/$folder"/*_cuda.cu) ;; esac
    for unit in "${units[@]}"; do
        while IFS= read -r command; do
            objects+=("$2.${#objects[@]}")
            command=$(sed -E "s@ -MF [^ ]+@@; s@ -MT [^ ]+@@; s@ -MD@@; s@ -o [^ ]+@ -o ${objects[-1]}@;
                              s@ -c [^ ]+@ -w -Wno-error -iquote $scratch -I$source/$folder -c $unit@" \
                <<<"$command")
            # ccache does not notice a header that comes to lie in front of another.
            (cd "$build" && CCACHE_DISABLE=1 eval "$command") || return
        done < <(ninja -C "$build" -t commands "$target" |
            grep -E "/$folder/$(basename "$unit")( |\$)")
    done
    if [ ${#objects[@]} -eq 1 ]; then mv "${objects[0]}" "$2"; else ld -r -o "$2" "${objects[@]}"; fi
}

# link_mutant OBJECT PROGRAM
link_mutant() {
    (cd "$build" && eval "${link/-o ${program//\//\\/}/$1 -o $2}")
}

# try NAME FILE SCRIPT
try() {
    local name=$1 file=$2 script=$3 verdict="" from=$source/$folder/$2
    case "$file" in
    cuda/*) from=$source/kernels/$file ;;
    *.cuh) file=${folder##*/}/$file ;;
    esac
    rm -rf "$scratch/cuda" "$scratch/${folder##*/}"
    mkdir -p "$scratch/cuda" "$scratch/${folder##*/}"
    sed -E "$script" "$from" >"$scratch/$file"
    if cmp -s "$scratch/$file" "$from"; then
        verdict="NOT APPLIED: its script changes nothing"
    elif ! compile "$scratch/$file" "$scratch/mutant.o" >"$scratch/log" 2>&1 ||
        ! link_mutant "$scratch/mutant.o" "$scratch/mutant" >>"$scratch/log" 2>&1; then
        verdict="NOT BUILT: $(grep -m 1 -i error "$scratch/log")"
    elif judge "$scratch/mutant"; then
        caught=$((caught + 1))
        printf '%-24s caught: %s\n' "$name" "$verdict"
        return
    fi
    missed=$((missed + 1))
    missed_names+=" $name"
    printf '%-24s %s\n' "$name" "$verdict"
}

# aim PROGRAM: mutants are linked into this one.
aim() {
    program=$1
    link=$(ninja -C "$build" -t commands "${program##*/}" | tail -n 1)
    case "$link" in
    *"-o $program"*) ;;
    *) echo "mutants.sh: $build does not say how $program is linked" >&2; exit 70 ;;
    esac
}

# take_part K/N: only every N-th mutant, from the K-th on.
take_part() {
    part=${1%/*} parts=${1#*/}
    if ! [ "$part" -lt "$parts" ] 2>/dev/null || [ "$part" -lt 0 ]; then
        echo "mutants.sh: --part: found '$1', accepted: K/N with K from 0 to N - 1" >&2
        exit 64
    fi
}

# try_some JOB LIST [NAME...]: every so many-th mutant of a list, from the JOB-th on; of those that
# `part` of `parts` leaves, where they are set.
try_some() {
    local job=$1 list=$2 number=0 name file script
    shift 2
    while IFS='|' read -r name file script; do
        name=${name%% *} file=${file# } script=${script# }
        case "$name" in '' | '#'*) continue ;; esac
        if [ $# -gt 0 ] && ! grep -qxF "$name" <(printf '%s\n' "$@"); then continue; fi
        number=$((number + 1))
        if [ $((number % ${parts:-1})) -ne "${part:-0}" ]; then continue; fi
        if [ $((number / ${parts:-1} % jobs)) -ne "$job" ]; then continue; fi
        case "$file" in *' < '*)
            read -r target arguments <<<"${file#* < }"
            file=${file%% *} folder=${file%/*}
            file=${file##*/}
            aim "tests/$target"
            ;;
        esac
        try "$name" "${file%% *}" "$script"
    done <"$list"
}

# try_all LIST [NAME...]: all mutants of a list, or those named, as many at once as there are
# processors. Sets caught, missed and missed_names (" NAME NAME"), and once to what judge has counted
# in it. A file with a folder is FOLDER/FILE < TEST [ARGUMENT...]: there, and this test must fail.
try_all() {
    local jobs job counts count
    jobs=$(nproc)
    counts=$(mktemp -d /tmp/espalier-mutants-XXXXXX) || exit 70
    if [ -n "${program:-}" ]; then aim "$program"; fi
    for ((job = 0; job < jobs; job++)); do
        (
            caught=0 missed=0 once=0 missed_names=""
            scratch=$(mktemp -d /tmp/espalier-mutants-XXXXXX) || exit 70
            trap 'rm -rf "$scratch"' EXIT
            try_some "$job" "$@"
            echo "$caught $missed $once$missed_names" >"$counts/$job"
        ) &
    done
    wait
    caught=0 missed=0 once=0 missed_names=""
    for ((job = 0; job < jobs; job++)); do
        count=(0 1 0 "(a job that broke off)")
        if [ -e "$counts/$job" ]; then read -ra count <"$counts/$job"; fi
        caught=$((caught + count[0])) missed=$((missed + count[1])) once=$((once + count[2]))
        if [ ${#count[@]} -gt 3 ]; then missed_names+=" ${count[*]:3}"; fi
    done
    rm -rf "$counts"
}
