"""Client programs: real Kafka clients that each do the same job and say in JSON how it went.

The job (`job.py`) is the contract. Every program is started as `PROGRAM BOOTSTRAP JOB`, works
through the job's steps, prints one line of JSON and ends. `programs.py` knows how each is started
and what it can do; the tests judge the summaries.
"""
