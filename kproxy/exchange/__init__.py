"""An exchange as a person sees it: request and response, paired, timed, named, redacted."""
