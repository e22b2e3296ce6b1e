package cli

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// The scripts ask the program itself what may come next.
const bashCompletion = `# carillon completion bash: load with  source <(carillon completion bash)
_carillon() {
  local current="${COMP_WORDS[COMP_CWORD]}"
  local -a line=("${COMP_WORDS[@]:0:COMP_CWORD}")
  if [[ "$current" == -- ]]; then
    line+=(-)  # "--" alone would end the flags.
  elif [[ "$current" == -* ]]; then
    line+=("$current")
  elif [[ "${COMP_WORDS[COMP_CWORD-1]}" == -* ]]; then
    return  # A flag's value.
  fi
  local words
  words="$("${line[@]}" --generate-bash-completion 2>/dev/null)"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _carillon carillon
`

const zshCompletion = `#compdef carillon
# carillon completion zsh: load with  source <(carillon completion zsh)
_carillon() {
  local current="${words[CURRENT]}"
  local -a line=("${(@)words[1,CURRENT-1]}") answers
  if [[ "$current" == -- ]]; then
    line+=(-)  # "--" alone would end the flags.
  elif [[ "$current" == -* ]]; then
    line+=("$current")
  elif [[ "${line[-1]}" == -* ]]; then
    _files  # A flag's value.
    return
  fi
  answers=("${(@f)$("${line[@]}" --generate-bash-completion 2>/dev/null)}")
  if [[ -n "${answers[1]}" ]]; then
    _describe 'carillon' answers
  else
    _files
  fi
}
compdef _carillon carillon
`

func (p *program) completionCommand() *cli.Command {
	script := func(shell string, text func(*cli.App) (string, error)) *cli.Command {
		return &cli.Command{
			Name: shell, Usage: "print the script for " + shell,
			Action: func(c *cli.Context) error {
				body, err := text(c.App)
				if err != nil {
					return fmt.Errorf("make completion: %w", err)
				}
				_, err = fmt.Fprint(p.stdout, body)
				return err
			},
		}
	}
	constant := func(s string) func(*cli.App) (string, error) {
		return func(*cli.App) (string, error) { return s, nil }
	}
	return &cli.Command{
		Name: "completion", Usage: "print a shell's completion script",
		Description: "Load it from the shell's start-up file: source <(carillon completion bash), the same with zsh, and\n" +
			"carillon completion fish | source.",
		Subcommands: []*cli.Command{
			script("bash", constant(bashCompletion)),
			script("zsh", constant(zshCompletion)),
			script("fish", (*cli.App).ToFishCompletion),
		},
	}
}
