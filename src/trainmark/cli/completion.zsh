#compdef trainmark
# Completes the words of trainmark in zsh. Made by 'trainmark completion zsh' from its own parser; make it anew after an update.

# Sets known to what may stand at a place: after a command, after an option that takes a value, or, by '-', its options.
_trainmark_known() {
    case $1 in
@KNOWN@
        *) known=(); return 1 ;;
    esac
}

# Ids of the runs in a store that begin like a word, from its index.
_trainmark_runs() {
    LC_ALL=C awk -F '"' -v begun="$2" '@RUN_IDS@' "${1/#\~/$HOME}/index.jsonl" 2>/dev/null
}

_trainmark() {
    local at=trainmark word i data=$HOME/.local/share
    local current=$words[CURRENT] previous=$words[CURRENT-1]
    local -a known plain runs
    [[ $XDG_DATA_HOME != /* ]] || data=$XDG_DATA_HOME
    local store=${TRAINMARK_STORE:-$data/trainmark}
    for ((i = 2; i < CURRENT; i++)); do
        word=$words[i]
        if [[ $word == --store ]]; then store=$words[i+1]
        elif [[ $word == --store=* ]]; then store=${word#*=}
        elif [[ $word != -* ]] && _trainmark_known "$at $word"; then at+=" $word"
        fi
    done
    if [[ $current == --*=* ]]; then
        previous=${current%%=*} current=${current#*=}
        compset -P '*='
    fi
    if [[ $previous != -* ]] || ! _trainmark_known "$at $previous"; then
        if [[ $current == -* ]]; then _trainmark_known "$at -"; else _trainmark_known "$at"; fi
    fi
    for word in "${known[@]}"; do
        [[ $word != @runs || $current != */* ]] || word=@files
        case $word in
            @runs) runs=(${(f)"$(_trainmark_runs "$store" "$current")"}) ; _describe -t runs run runs ;;
            @files) _files ;;
            @folders) _files -/ ;;
            *) plain+=("$word") ;;
        esac
    done
    (( ! $#plain )) || _describe -t words word plain
}

# a file of fpath is run in place of its function the first time; one that is sourced only says what it is for
if [[ $funcstack[1] == _trainmark ]]; then _trainmark "$@"; else compdef _trainmark trainmark; fi
