# Completes the words of trainmark in fish. Made by 'trainmark completion fish' from its own parser; make it anew after an update.

set -g __trainmark_commands @COMMANDS@

# The command that has been typed, with those above it.
function __trainmark_at
    set -l at trainmark
    for word in (commandline -opc)[2..]
        contains -- "$at $word" $__trainmark_commands; and set at "$at $word"
    end
    test "$at" = "$argv[1]"
end

# Ids of the runs in the store that begin like the word, from its index.
function __trainmark_runs
    set -l current (commandline -ct | string replace -r '^--[^=]*=' '')
    if string match -q '*/*' -- $current
        __fish_complete_path $current
        return
    end
    set -l store $HOME/.local/share/trainmark
    string match -q '/*' -- "$XDG_DATA_HOME"; and set store $XDG_DATA_HOME/trainmark
    test -n "$TRAINMARK_STORE"; and set store $TRAINMARK_STORE
    set -l typed (commandline -opc)
    for i in (seq (count $typed))
        switch $typed[$i]
            case --store
                test $i -lt (count $typed); and set store $typed[(math $i + 1)]
            case '--store=*'
                set store (string replace -- --store= '' $typed[$i])
        end
    end
    set store (string replace -r '^~' $HOME -- $store)
    LC_ALL=C awk -F '"' -v begun="$current" '@RUN_IDS@' $store/index.jsonl 2>/dev/null
end

complete -c trainmark -f
@KNOWN@
