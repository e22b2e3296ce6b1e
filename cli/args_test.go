package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestFlagsAreAcceptedAnywhere(t *testing.T) {
	tests := []struct{ typed, parsed string }{
		{"jobs get ID -o json", "jobs get -o json ID"},
		{"-o json jobs get ID", "jobs get -o json ID"},
		{"jobs -o json get ID", "jobs get -o json ID"},
		{"jobs get --output=json ID --timeout 3s", "jobs get --output=json --timeout 3s ID"},
		{"jobs get ID", "jobs get ID"},
		{"jobs get jobs", "jobs get jobs"},
		{"jobs import - --max-errors 3", "jobs import --max-errors 3 -"},
		{"jobs get -o json -- -x", "jobs get -o json -- -x"},
		{"jobs create --priority -1 --in 1h", "jobs create --priority -1 --in 1h"},
		{"serve --insecure --listen :1", "serve --insecure --listen :1"},
		{"dead-letters requeue a --all b", "dead-letters requeue --all a b"},
		{"jobs get ID --nonsense x", "jobs get --nonsense ID x"},
		{"help", "--help"},
		{"help jobs get", "jobs get --help"},
		{"jobs help get", "jobs get --help"},
		{"jobs get help", "jobs get help"},
		{"jobs get --o --generate-bash-completion", "jobs get --o --generate-bash-completion"},
		{"", ""},
	}
	for _, test := range tests {
		args := append([]string{"carillon"}, strings.Fields(test.typed)...)
		want := append([]string{"carillon"}, strings.Fields(test.parsed)...)
		if got := arrange((&program{}).app(), args); !slices.Equal(got, want) {
			t.Errorf("%q is parsed as %q, want %q", test.typed, got[1:], want[1:])
		}
	}
}

func TestCompletionNamesCommandsAndFlags(t *testing.T) {
	tests := []struct {
		line string
		want []string
	}{
		{"--generate-bash-completion", []string{"serve", "jobs", "dead-letters"}},
		{"jobs --generate-bash-completion", []string{"create", "import"}},
		{"jobs create --pay --generate-bash-completion", []string{"--payload", "--payload-file"}},
		{"completion bash", []string{"complete -o default -F _carillon carillon"}},
		{"completion zsh", []string{"compdef _carillon carillon"}},
		{"completion fish", []string{"complete -c carillon"}},
	}
	// The parser's completion looks at the process's own arguments.
	own := os.Args
	defer func() { os.Args = own }()
	for _, test := range tests {
		os.Args = append([]string{"carillon"}, strings.Fields(test.line)...)
		got := session(t.Context(), nil, os.Args[1:], nil)
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%q answers without %q:\n%s", test.line, want, got)
			}
		}
	}
}
