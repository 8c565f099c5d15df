"""What a person means by an exchange: request and response, paired, timed, named, redacted."""
