# Completes the words of trainmark in bash. Made by 'trainmark completion bash' from its own parser; make it anew after an update.

# Sets known to what may stand at a place: after a command, after an option that takes a value, or, by '-', its options.
_trainmark_known() {
    case $1 in
@KNOWN@
        *) known=; return 1 ;;
    esac
}

# Ids of the runs in a store that begin like a word, from its index.
_trainmark_runs() {
    local store=$1
    case $store in '~'*) store=$HOME${store#'~'} ;; esac
    LC_ALL=C awk -F '"' -v begun="$2" '@RUN_IDS@' "$store/index.jsonl" 2>/dev/null
}

_trainmark() {
    local IFS=$' \t\n' known word i at=trainmark words= data=$HOME/.local/share
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    case $XDG_DATA_HOME in /*) data=$XDG_DATA_HOME ;; esac
    local store=${TRAINMARK_STORE:-$data/trainmark}
    # bash takes --option=value for three words
    if [[ $current == = ]]; then current=
    elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == --store ]]; then
            store=${COMP_WORDS[i+1]}
            [[ $store != = ]] || store=${COMP_WORDS[i+2]}
        elif [[ $word != -* ]] && _trainmark_known "$at $word"; then
            at+=" $word"
        fi
    done
    if [[ $previous != -* ]] || ! _trainmark_known "$at $previous"; then
        if [[ $current == -* ]]; then _trainmark_known "$at -"; else _trainmark_known "$at"; fi
    fi
    COMPREPLY=()
    for word in $known; do
        IFS=$'\n'  # names of files may hold spaces
        [[ $word != @runs || $current != */* ]] || word=@files
        case $word in
            @runs) words+=$'\n'$(_trainmark_runs "$store" "$current") ;;
            @files)
                [[ -n $current || $known == @files ]] || continue  # every file, only where nothing else can be meant
                compopt -o filenames 2>/dev/null
                COMPREPLY+=($(compgen -f -- "$current"))
                ;;
            @folders)
                compopt -o filenames 2>/dev/null
                COMPREPLY+=($(compgen -d -- "$current"))
                ;;
            *) words+=$'\n'$word ;;
        esac
    done
    COMPREPLY+=($(compgen -W "$words" -- "$current"))
}

complete -F _trainmark trainmark
